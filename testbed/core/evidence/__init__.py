"""What was measured, as values: records, recovery, bytes on the wire."""
