"""Training agents: the code inside a node. Imports nothing of ``testbed``; docs/design.md has the protocol."""

from testbed_agents.progress_calls import step

__all__ = ["step"]
__version__ = "0.1.0"
