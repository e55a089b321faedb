"""
The job scheduler: runs the rule for trainings (``scheduler/policy/jobs``) live.

Postgres is the truth of jobs, GPU workers report their ranks, and the rule is rebuilt from both whenever a process takes
the lead (``decider.py``).
"""
