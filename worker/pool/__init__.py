"""The warm pool of one GPU instance. Its door is :class:`worker.pool.pool.Pool`."""
