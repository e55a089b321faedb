"""
``python -m scheduler.worker QUEUE NAME``: a Celery worker for ``scheduler`` (may lead), ``control`` (history and trainings) or
``learn``.
"""

import sys
from typing import NoReturn

from scheduler import refusals
from scheduler.schedule import CONTROL_QUEUE, LEARN_QUEUE, SCHEDULER_QUEUE
from scheduler.turn import take
from smore.process.environment import settings
from smore.process.observability import configure
from smore.redis.celery import make_app

#: Threads of each queue's worker: a leader takes one and the others let its firings return at once; so does a fit.
THREADS = {SCHEDULER_QUEUE: 2, CONTROL_QUEUE: 5, LEARN_QUEUE: 2}


def _refuse(reason: str) -> NoReturn:
    """One line, exit code 2; the supervisor tries again."""
    print(reason, file=sys.stderr)
    sys.exit(2)


def main(queue: str, name: str) -> None:
    config = settings()
    configure(config, name)
    turn = take(config.home) if queue == SCHEDULER_QUEUE else None
    app = make_app(name, config, [queue])
    if turn is not None:
        from scheduler.tasks.assign import register_assign

        if reason := refusals.of_policy(config.policy):
            _refuse(f"The policy cannot be used: {reason}")
        register_assign(app, config, turn)
    elif queue == LEARN_QUEUE:
        from scheduler.tasks.learn import register_learn

        register_learn(app, config)
    else:
        # Imported where it is used: the scheduler's processes have no use for SQLAlchemy's memory.
        from scheduler.tasks.jobs import refuse, register_jobs
        from scheduler.tasks.record import register_record

        if reason := refusals.of_jobs(config.jobs):
            refuse(config, reason)
            _refuse(reason)
        register_record(app, config)
        register_jobs(app, config)
    app.worker_main(
        [
            "--quiet",
            "worker",
            "-Q",
            queue,
            "-P",
            "threads",
            "-c",
            str(THREADS[queue]),
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
    if len(sys.argv) != 3 or sys.argv[1] not in THREADS:
        sys.exit(f"usage: python -m scheduler.worker {'|'.join(THREADS)} NAME")
    main(sys.argv[1], sys.argv[2])
