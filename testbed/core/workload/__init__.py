"""The workload of a job: the testbed's own agents, or a program of the user's."""
