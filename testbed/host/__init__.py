"""Access to the host: one external system per module, its exceptions translated to ``testbed.errors``."""
