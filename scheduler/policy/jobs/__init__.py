"""
The rule for trainings that wait: events in, decisions out, as the policy of functions beside it.

Pure, and of the standard library alone: the process that runs it live must not grow by numpy. Both shells, the live one
and the simulator, feed the same :class:`~scheduler.policy.jobs.core.JobPolicy`.
"""
