"""Twins of strategies, pure: operations, bytes, equal tensors, committed steps of each way of training across sites."""
