"""Twins of the strategies that the testbed's agents can train by: one file each, named as the agent's half."""
