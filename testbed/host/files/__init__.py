"""Files: what is read from users, and what is kept of runs."""
