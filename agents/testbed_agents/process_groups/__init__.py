"""Process groups of a job: watched ones, their hooks, and what ranks share beside them."""
