"""Edges: one foreign thing each, its exceptions translated."""
