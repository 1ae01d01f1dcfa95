"""Another host over SSH: connect as ssh would, run a command on a leash there, send files and fetch runs."""
