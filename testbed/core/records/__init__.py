"""Records of a run as typed values: run.json, events, metrics, step records, records of the checkers."""
