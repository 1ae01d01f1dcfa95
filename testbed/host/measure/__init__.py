"""Measuring: packets sent through paths, and carriers heard of."""
