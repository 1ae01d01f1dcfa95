"""Drivers: what makes a lab's nodes and cables real, namespaces or containers."""
