"""
The decision core: events in, decisions out.

Pure: it imports ``smore.domain``, numpy and numba and nothing else, never reads a clock, logs, or raises for an expected
outcome; time and randomness are arguments. The live leader (``scheduler/leader/leader.py``) and the simulator feed the
same :class:`~scheduler.policy.policy.Policy`.
"""
