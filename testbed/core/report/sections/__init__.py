"""The sections of a run's report, a module each: what it shows as sentences, tables and blocks."""
