"""Files in which users' programs report their progress: read as they grow, without trust in their writers."""
