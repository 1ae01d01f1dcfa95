"""Jobs: start, follow, record and restart them."""
