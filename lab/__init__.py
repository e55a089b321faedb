"""The laboratory: what compares, measures and shows the platform, and nothing that it needs."""
