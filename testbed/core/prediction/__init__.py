"""Prediction of training across sites: closed forms, an event model, and one set of inputs for both. Pure."""
