"""``python -m scheduler.beat``: Celery beat with its schedule in memory (a lost firing is replaced within a second)."""

from scheduler.schedule import BEAT
from smore.process.environment import settings
from smore.process.observability import configure
from smore.redis.celery import make_app


def main() -> None:
    config = settings()
    configure(config, "beat")
    app = make_app("beat", config, ["scheduler", "control", "learn"])
    app.conf.beat_schedule = BEAT
    app.Beat(scheduler="celery.beat:Scheduler", max_interval=1, loglevel="WARNING", quiet=True).run()


if __name__ == "__main__":
    main()
