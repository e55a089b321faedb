"""Runner processes and where they come from: the nursery, the zygote, the runner itself, and the worker's handles on them."""
