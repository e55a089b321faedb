"""GPU instances as the rule for trainings sees them."""

from msgspec.structs import replace

from scheduler.jobs.watch import Watch
from scheduler.policy.jobs.events import Event, GpuSeen
from smore.messages.reports import JobReport, Report
from tests.support import fake_platform


def looked(watch: Watch, at: float, *reports: Report) -> list[Event]:
    return watch.look(at, reports, (), (), (), ())


def test_the_rule_hears_what_a_context_takes_on_a_device_also_while_it_is_silent() -> None:
    report = replace(fake_platform.report(), context_mib=600.0, warm=())
    watch = Watch(60.0, {}, 0.0)
    [seen] = looked(watch, 1.0, report)
    assert isinstance(seen, GpuSeen)
    assert (seen.context_mib, seen.closed) == (600.0, "")
    assert looked(watch, 2.0, report) == []
    [silent] = looked(watch, 3.0)
    assert isinstance(silent, GpuSeen)
    assert (silent.context_mib, silent.closed) == (600.0, "silent")
    [measured] = looked(watch, 4.0, replace(report, context_mib=472.5))
    assert isinstance(measured, GpuSeen)
    assert measured.context_mib == 472.5


def test_a_training_that_nobody_sees_occupies_nothing() -> None:
    told = JobReport(id="j", project="p", state="running", pid=0, memory_mib=0.0, iterations=0)
    unseen = replace(told, unseen="there is no such process")
    watch = Watch(60.0, {}, 0.0)
    [none] = looked(watch, 1.0, replace(fake_platform.report(), jobs=[unseen]))
    [one] = looked(watch, 2.0, replace(fake_platform.report(), jobs=[unseen, told]))
    assert isinstance(none, GpuSeen) and isinstance(one, GpuSeen)
    assert (none.attached, one.attached) == (0, 1)
