"""Metrics: scraping, exposition, and the Prometheus server."""
