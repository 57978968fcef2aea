"""Kernels for the CPU: torch's own operations on blocks of rows that fit into the caches."""
