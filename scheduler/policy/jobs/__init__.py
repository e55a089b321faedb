"""
The rule for trainings that wait: events in, decisions out, as the policy of functions beside it.

The simulator alone runs it (scheduler/simulation/jobs): live, a training starts at once or is refused (api/trainings.py).
Pure, and of the standard library alone, so that a process can run it without numpy.
"""
