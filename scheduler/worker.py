"""
``python -m scheduler.worker scheduler|control NAME``: a Celery worker. ``scheduler`` may lead; ``control`` writes the
history, decides over trainings, starts what learns, and runs beat as a thread.
"""

import sys
from typing import NoReturn

from celery import Celery

from scheduler import refusals
from scheduler.schedule import CONTROL_QUEUE, LEARN_QUEUE, SCHEDULER_QUEUE
from scheduler.turn import take
from smore.process.environment import settings
from smore.process.observability import configure
from smore.process.settings import Settings
from smore.redis.celery import make_app, serve

#: Queues of each kind of worker.
QUEUES = {SCHEDULER_QUEUE: (SCHEDULER_QUEUE,), CONTROL_QUEUE: (CONTROL_QUEUE, LEARN_QUEUE)}
#: Its threads: a leader takes one and the others let its firings return at once; so do recording, the decider over
#: trainings, and each child that learns.
THREADS = {SCHEDULER_QUEUE: 2, CONTROL_QUEUE: 7}


def _refuse(reason: str) -> NoReturn:
    """One line, exit code 2; the supervisor tries again."""
    print(reason, file=sys.stderr)
    sys.exit(2)


def _register_control(app: Celery, config: Settings) -> None:
    # Imported where it is used: the scheduler's processes have no use for SQLAlchemy's memory.
    from scheduler import control
    from scheduler.tasks.jobs import refuse

    if reason := refusals.of_jobs(config.jobs):
        refuse(config, reason)
        _refuse(reason)
    if config.postgres.url is None:
        _refuse("SMORE_POSTGRES__URL is not set")
    control.register(app, config)


def load() -> None:
    """Import and prepare what a leader needs, for a template of it (smore/local/template.py)."""
    from scheduler.tasks import assign

    assign.prepare_compiled()


def main(kind: str, name: str) -> int:
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
    return serve(app, name, THREADS[kind], QUEUES[kind])


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in QUEUES:
        sys.exit(f"usage: python -m scheduler.worker {'|'.join(QUEUES)} NAME")
    sys.exit(main(sys.argv[1], sys.argv[2]))
