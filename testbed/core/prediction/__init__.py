"""Prediction of training across sites: one simulator of what the strategies' twins do. Pure."""
