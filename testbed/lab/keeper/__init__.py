"""The keeper: the process that owns a lab while no command runs, and how it is spoken to."""
