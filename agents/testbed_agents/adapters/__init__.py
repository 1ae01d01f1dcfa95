"""Rank programs of ``testbed validate``: one for each collective library. The protocol is docs/validate.md.

``helper`` speaks it; each other module but ``elements``, ``mesh`` and ``broken`` adapts one library to it.
"""
