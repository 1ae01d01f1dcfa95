"""Exchanges between replicas: sums and means, codes, slices and fragments of the model, outer optimizers."""
