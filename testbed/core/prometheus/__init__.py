"""Prometheus for an observed lab: exported series, scrape configuration, targets; rules are in ``assets``."""
