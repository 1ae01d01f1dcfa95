"""Pure: no process, socket, clock, environment or global state; clock and seed are arguments."""
