"""What steps cost: predicted from certificates and timings, measured along the critical path."""
