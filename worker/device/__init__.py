"""The device of one GPU worker: a GPU, a MIG instance or a CPU partition."""
