"""The keeper: the resident process that owns a lab while no command runs, and the protocol that it serves."""
