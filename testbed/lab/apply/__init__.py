"""Steps made real: the engine, its journal, and the hands that it has."""
