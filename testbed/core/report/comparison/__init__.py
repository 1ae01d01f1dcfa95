"""Two runs side by side: what differs in their inputs, and what differs in what was measured."""
