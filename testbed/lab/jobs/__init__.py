"""Jobs: begun, followed, observed, begun again."""
