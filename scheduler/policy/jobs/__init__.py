"""
The rule for trainings that wait: events in, decisions out, as the policy of functions beside it.

scheduler/jobs runs it live, lab/simulation/jobs on a simulated clock.
Pure: the standard library and smore.domain alone, so that a process can run it without numpy.
"""
