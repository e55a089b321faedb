"""The beat table. Beat imports this and nothing that decides."""

from smore.celery_app import ASSIGN, RECORD, RETAIN

SCHEDULER_QUEUE = "scheduler"
CONTROL_QUEUE = "control"

#: A message that waited longer is dropped: the next one is there already.
BEAT = {
    "assign": {"task": ASSIGN, "schedule": 1.0, "options": {"queue": SCHEDULER_QUEUE, "expires": 1.0}},
    "record": {"task": RECORD, "schedule": 1.0, "options": {"queue": CONTROL_QUEUE, "expires": 1.0}},
    "retain": {"task": RETAIN, "schedule": 3600.0, "options": {"queue": CONTROL_QUEUE, "expires": 600.0}},
}
