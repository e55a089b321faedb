"""What a control worker does: it writes the history, decides over trainings, starts what learns, and runs beat."""

import threading

from celery import Celery
from celery.beat import Scheduler, Service
from celery.signals import worker_ready

from scheduler.schedule import BEAT
from scheduler.tasks.jobs import register_jobs
from scheduler.tasks.learn import register_learn
from scheduler.tasks.record import register_record
from smore.postgres.connection import make_engine
from smore.process.settings import Settings


def register(app: Celery, config: Settings) -> None:
    """Make this app's worker a control worker. ``config.postgres.url`` must be set."""
    assert config.postgres.url is not None
    # One pool: a kept connection is a process of Postgres.
    engine = make_engine(config.postgres.url, "control")
    register_record(app, config, engine)
    register_jobs(app, config)
    register_learn(app, config, engine)
    app.conf.beat_schedule = BEAT

    @worker_ready.connect(weak=False)
    def _start(**_: object) -> None:
        # Its schedule is in memory: a lost firing is replaced by the next one.
        beat = Service(app, scheduler_cls=Scheduler)
        threading.Thread(target=beat.start, name="beat", daemon=True).start()
