"""What can be learned from trained runs: alignment, forced targets, vectors, comparison."""
