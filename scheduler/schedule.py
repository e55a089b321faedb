"""The beat table. Beat imports this and nothing that decides."""

from celery.schedules import crontab

from smore.redis.celery import ASSIGN, FORECAST, JOBS, RECORD, REFIT, REPUBLISH, RETAIN, RETRAIN

SCHEDULER_QUEUE = "scheduler"
CONTROL_QUEUE = "control"
LEARN_QUEUE = "learn"

#: A message that waited longer is dropped: the next one is there already.
BEAT = {
    # These have no end and their worker fires them when it is ready: a message is for one that has ended with an error.
    "assign": {"task": ASSIGN, "schedule": 5.0, "options": {"queue": SCHEDULER_QUEUE, "expires": 5.0}},
    "record": {"task": RECORD, "schedule": 5.0, "options": {"queue": CONTROL_QUEUE, "expires": 5.0}},
    "jobs": {"task": JOBS, "schedule": 5.0, "options": {"queue": CONTROL_QUEUE, "expires": 5.0}},
    "retain": {"task": RETAIN, "schedule": 3600.0, "options": {"queue": CONTROL_QUEUE, "expires": 600.0}},
    # Looks whether enough is new; mostly it is not.
    "retrain": {"task": RETRAIN, "schedule": 600.0, "options": {"queue": LEARN_QUEUE, "expires": 600.0}},
    # When a minute begins: what came in the one before is recorded within a second or two.
    "forecast": {"task": FORECAST, "schedule": crontab(), "options": {"queue": LEARN_QUEUE, "expires": 30.0}},
    "refit": {"task": REFIT, "schedule": 600.0, "options": {"queue": LEARN_QUEUE, "expires": 600.0}},
    "republish": {"task": REPUBLISH, "schedule": 10.0, "options": {"queue": LEARN_QUEUE, "expires": 10.0}},
}
