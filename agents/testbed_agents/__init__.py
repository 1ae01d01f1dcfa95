"""Training agents: the code inside a node. Imports nothing of ``testbed``; docs/design.md has the protocol."""

__version__ = "0.1.0"
