"""What crossed the fibers: bytes compared with those of the strategy, silences, and delays under load."""
