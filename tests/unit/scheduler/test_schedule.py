"""Beat: how often it wakes the platform."""

from scheduler.schedule import BEAT


def test_it_sends_at_most_one_message_a_second() -> None:
    messages = 0.0
    for entry in BEAT.values():
        every = entry["schedule"]
        # A crontab entry fires once a minute at most.
        messages += 1.0 / (every if isinstance(every, float) else 60.0)
    assert messages <= 1.0
