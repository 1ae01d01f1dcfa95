"""Parameter servers: sites push pseudo-gradients to a server at one site, and do not step together."""
