"""
``python -m scheduler.worker scheduler|control NAME``: a Celery worker. ``scheduler`` may lead; ``control`` writes the
history, decides over trainings, starts what learns, and runs beat as a thread.
"""

import sys
import threading
from typing import NoReturn

from celery import Celery
from celery.beat import Scheduler, Service
from celery.signals import worker_ready

from scheduler import refusals
from scheduler.schedule import BEAT, CONTROL_QUEUE, LEARN_QUEUE, SCHEDULER_QUEUE
from scheduler.turn import take
from smore.process.environment import settings
from smore.process.observability import configure
from smore.process.settings import Settings
from smore.redis.celery import make_app

#: Queues of each kind of worker.
QUEUES = {SCHEDULER_QUEUE: (SCHEDULER_QUEUE,), CONTROL_QUEUE: (CONTROL_QUEUE, LEARN_QUEUE)}
#: Its threads: a leader takes one and the others let its firings return at once; so do recording, the decider over
#: trainings, and each child that learns.
THREADS = {SCHEDULER_QUEUE: 2, CONTROL_QUEUE: 7}


def _refuse(reason: str) -> NoReturn:
    """One line, exit code 2; the supervisor tries again."""
    print(reason, file=sys.stderr)
    sys.exit(2)


def _register_beat(app: Celery) -> None:
    """Let beat run in this process, with its schedule in memory: a lost firing is replaced by the next one."""
    app.conf.beat_schedule = BEAT

    @worker_ready.connect(weak=False)
    def _start(**_: object) -> None:
        beat = Service(app, scheduler_cls=Scheduler)
        threading.Thread(target=beat.start, name="beat", daemon=True).start()


def _register_control(app: Celery, config: Settings) -> None:
    # Imported where it is used: the scheduler's processes have no use for SQLAlchemy's memory.
    from scheduler.tasks.jobs import refuse, register_jobs
    from scheduler.tasks.learn import register_learn
    from scheduler.tasks.record import register_record
    from smore.postgres.connection import make_engine

    if reason := refusals.of_jobs(config.jobs):
        refuse(config, reason)
        _refuse(reason)
    if config.postgres.url is None:
        _refuse("SMORE_POSTGRES__URL is not set")
    # One pool: a kept connection is a process of Postgres.
    engine = make_engine(config.postgres.url, "control")
    register_record(app, config, engine)
    register_jobs(app, config)
    register_learn(app, config, engine)
    _register_beat(app)


def load() -> None:
    """Import and prepare what both kinds of worker need, for a template of them (smore/local/template.py)."""
    # The first brings Celery's command line, which takes most of it.
    from celery.bin import celery  # noqa: F401
    from celery.concurrency import thread  # noqa: F401
    from celery.worker import components, consumer  # noqa: F401

    from scheduler.tasks import assign, jobs, learn, record  # noqa: F401
    from smore.postgres import connection  # noqa: F401

    assign.prepare_compiled()


def main(kind: str, name: str) -> None:
    config = settings()
    configure(config, name)
    turn = take(config.home) if kind == SCHEDULER_QUEUE else None
    # Beat sends to every queue.
    app = make_app(name, config, [kind, *({SCHEDULER_QUEUE, CONTROL_QUEUE, LEARN_QUEUE} - {kind})])
    if turn is not None:
        from scheduler.tasks.assign import register_assign

        if reason := refusals.of_policy(config.policy):
            _refuse(f"The policy cannot be used: {reason}")
        register_assign(app, config, turn)
    else:
        _register_control(app, config)
    app.worker_main(
        [
            "--quiet",
            "worker",
            "-Q",
            ",".join(QUEUES[kind]),
            "-P",
            "threads",
            "-c",
            str(THREADS[kind]),
            "-n",
            f"{name}@%h",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "-l",
            "WARNING",
        ]
    )


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in QUEUES:
        sys.exit(f"usage: python -m scheduler.worker {'|'.join(QUEUES)} NAME")
    main(sys.argv[1], sys.argv[2])
