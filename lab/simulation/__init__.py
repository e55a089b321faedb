"""
The simulator: the policy core on a simulated clock, over GPU instances whose contention is known exactly.

It feeds any :class:`scheduler.policy.policy.Policy` the events that the live leader would and carries its decisions
out. Nothing is decided here, and nothing is taken from the predictor: the interference model (``interference.py``) has a
formula of its own, or parameters fitted to measured rows. A simulated number tests the logic of scheduling; it says
nothing about a device.
"""
