"""Drivers: create a lab's nodes and links, as namespaces or containers."""
