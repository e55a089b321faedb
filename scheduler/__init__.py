"""Decides: the pure policy, the simulator and the live leader around it."""
