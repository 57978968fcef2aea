"""What the kernels of a GPU do, by torch's own operations on as many rows at a time as stay in a CPU's caches."""
