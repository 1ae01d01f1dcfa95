"""What a rank records: steps, checksums and samples of operations, metrics, and counters of the kernel."""
