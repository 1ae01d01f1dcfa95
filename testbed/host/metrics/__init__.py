"""Metrics: scraped, exposed, and handed to Prometheus."""
