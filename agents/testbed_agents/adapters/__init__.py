"""Rank programs of ``testbed validate``, one for each collective library. docs/validate.md defines their protocol.

``helper`` implements it; each other module except ``elements``, ``mesh`` and ``broken`` adapts one library to it.
"""
