"""What is told of a lab to Prometheus: series, scrape configuration, targets; rules are in ``assets``."""
