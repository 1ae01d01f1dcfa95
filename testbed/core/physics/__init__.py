"""Physics of fiber links: kilometres, fiber types and optics to delay, rate and loss."""
