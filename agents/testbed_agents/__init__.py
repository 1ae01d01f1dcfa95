"""Training agents: what runs inside a node. Imports nothing of ``testbed``; the contract is in docs/design.md."""

__version__ = "0.1.0"
