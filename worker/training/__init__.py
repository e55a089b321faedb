"""Serverful jobs of one GPU instance: start, adoption, measurement, and the run gate that protects them."""
