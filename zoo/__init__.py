"""The models of the paper's table I as functions and as training jobs, and small functions for tests and benchmarks."""
