"""What a platform served, read back on real servers and replayed."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import redis
from sqlalchemy import Engine

from lab.research.replay import replay
from lab.research.replay.past_runs import PastRuns
from smore.domain.function import FunctionSpec, Profile
from smore.domain.ids import new_id
from smore.domain.invocation import State
from smore.messages import stream
from smore.messages.degradation import PlaceTable, Table
from smore.messages.reports import JobReport, Report, encode_report
from smore.postgres.catalog import Store
from smore.postgres.history.recorder import Recorder
from smore.process.settings import PolicySettings, Settings
from smore.redis.fleet import Fleet
from smore.redis.tables import Tables
from tests.support.placed_jobs import placed

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "own-policy.md"
PREFIX = "smore:"
PLACE = ("a CPU", "time-slice, functions nice 5")
WORKLOAD = "resnet50/cpu/training/8"
SPEC = FunctionSpec(
    entrypoint="zoo.echo:Function",
    max_warm=2,
    profile=Profile(run_s={1: 0.05}, load_s=1.0, memory_mib=100.0, utilisation=0.3, model="bert/cpu"),
)
DECISION = {
    "v": 1,
    "policy": "smore-product",
    "candidates": [{"gpu": "cpu0", "warm": True, "run_s": 0.05, "function_degradation": 0.25}],
}


def table() -> Table:
    def matrix(value: float) -> bytes:
        return np.full(1, value).tobytes()

    half, one = matrix(0.25), matrix(0.1)
    return Table(
        version=3,
        source="test",
        created_at=0.0,
        places=[
            PlaceTable(
                device=PLACE[0],
                sharing_mode=PLACE[1],
                trainings=[WORKLOAD],
                functions=["bert/cpu/function/1"],
                training=one,
                training_upper=one,
                function=half,
                function_upper=half,
                function_on_function=half,
                function_on_function_upper=half,
                measured=b"\1",
                solo_s=matrix(0.05),
                usage_gain=matrix(0.2),
                degradation=matrix(0.3),
            )
        ],
    )


@pytest.fixture(autouse=True)
def _logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests keeps its own."""
    monkeypatch.setattr("lab.research.replay.replay.observability.configure", lambda *_: None)


@pytest.fixture
def begin_us() -> int:
    """Half an hour ago, at the beginning of ten seconds."""
    return int(time.time() - 1800) // 10 * 10_000_000


@pytest.fixture
def serve(engine: Engine, redis_client: "redis.Redis") -> Callable[..., None]:
    """Tell the recorder what a leader and a worker would."""

    def tell(*events: stream.Event) -> None:
        for event in events:
            redis_client.xadd(f"{PREFIX}ev", {"e": stream.encode(event)})
        Recorder(engine, redis_client, PREFIX).drain()

    return tell


def life(
    at_us: int,
    *,
    revision: int = 1,
    run_ms: float = 50.0,
    state: str = "succeeded",
    cold: bool = False,
    took_us: int = 60_000,
) -> list[stream.Event]:
    """An invocation with two seconds to its deadline; one that has not ended where ``state`` is empty."""
    id_, function, deadline = new_id(), "default/echo", at_us + 2_000_000
    arrived = stream.Arrived(1, function, revision, id_, at_us, deadline, 1, "", "k", "")
    if state == "expired":
        end = stream.Settled(
            1,
            function,
            revision,
            id_,
            0,
            0,
            "expired",
            "deadline_expired",
            "",
            at_us,
            deadline,
            0,
            0,
            deadline,
            1,
            "k",
            "",
            0,
            "",
        )
        return [arrived, end]
    meta = json.dumps(
        {
            "cold": cold,
            "load_ms": {"weights": 700.0} if cold else {},
            "run_ms": run_ms,
            "batch": 1,
            "rows": 1,
            "co": [],
            "jobs": ["j1"],
        }
    )
    claimed, begun = at_us + 1000, at_us + 4000
    dispatched = stream.Dispatched(1, function, "cpu0", claimed, [(id_, 1)], json.dumps(DECISION))
    if not state:
        return [arrived, dispatched]
    settled = stream.Settled(
        1,
        function,
        revision,
        id_,
        1,
        1,
        state,
        "ok",
        "cpu0",
        at_us,
        deadline,
        claimed,
        begun,
        at_us + took_us,
        1,
        "k",
        "",
        0,
        meta,
    )
    return [arrived, dispatched, settled]


def heartbeat(at_us: int) -> Report:
    job = JobReport(
        id="j1",
        project="default",
        state="running",
        pid=1,
        memory_mib=500.0,
        iterations=9,
        window_s=10.0,
        solo_s=0.1,
        solo_count=30,
        shared_s=0.11,
        shared_count=10,
    )
    return Report(
        gpu="cpu0",
        boot="b",
        at=at_us / 1e6,
        kind="cpu",
        device=PLACE[0],
        sharing_mode=PLACE[1],
        slots=3,
        memory_total_mib=2000.0,
        memory_used_mib=10.0,
        utilisation=0.7,
        utilisation_counter="cpu-time",
        function_utilisation=0.1,
        running=1,
        jobs=[job],
    )


def told(at_us: int) -> stream.Reported:
    return stream.Reported(1, "cpu0", at_us, encode_report(heartbeat(at_us)).decode())


def span(begin_us: int) -> tuple[float, float]:
    return begin_us / 1e6 - 1, time.time()


def test_the_reader_yields_what_ended_with_its_last_attempt(
    engine: Engine, serve: Callable[..., None], begin_us: int
) -> None:
    serve(
        *life(begin_us, run_ms=62.5),
        *life(begin_us + 1_000_000, cold=True),
        *life(begin_us + 2_000_000, state="expired"),
        *life(begin_us + 3_000_000, state="cancelled"),
        *life(begin_us + 4_000_000, state=""),
        *life(begin_us - 10_000_000_000),
    )
    reader = PastRuns(engine)

    found, count = reader.served(*span(begin_us), most=10)

    assert count == 3
    assert [one.arrival_at for one in found] == [begin_us / 1e6 + number for number in range(3)]
    warm, cold, expired = found
    assert (warm.function, warm.revision, warm.state, warm.met) == ("default/echo", 1, State.SUCCEEDED, True)
    assert (warm.run_s, warm.batch, warm.batch_rows, warm.cold, warm.slowdown) == (0.0625, 1, 1, False, 0.25)
    assert warm.wait_s == pytest.approx(0.003)
    assert (cold.cold, cold.load_s) == (True, pytest.approx(0.7))
    assert (expired.state, expired.attempt, expired.run_s, expired.cold, expired.met) == (
        State.EXPIRED,
        0,
        None,
        None,
        False,
    )
    newest, count = reader.served(*span(begin_us), most=1)
    assert (newest, count) == ([expired], 3)
    assert reader.policies(*span(begin_us)) == {"smore-product": 4}


def test_gpu_instances_and_jobs_over_a_span(
    engine: Engine, store: Store, serve: Callable[..., None], begin_us: int
) -> None:
    job = placed(store, "night", ["cpu0"], workload=WORKLOAD, budget=0.05)
    serve(*(told(begin_us + second * 1_000_000) for second in range(25)))
    reader = PastRuns(engine)

    (gpu,) = reader.gpu_use(*span(begin_us))
    (use,) = reader.job_use(*span(begin_us))

    assert (gpu.gpu, gpu.device, gpu.sharing_mode, gpu.memory_total_mib, gpu.samples) == ("cpu0", *PLACE, 2000.0, 25)
    assert (gpu.utilisation, gpu.function_utilisation) == (pytest.approx(0.7), pytest.approx(0.1))
    assert (use.job, use.gpu, use.windows) == ("j1", "cpu0", 3)
    assert (use.solo_s, use.mean_s) == (pytest.approx(0.1), pytest.approx(0.1025))
    assert reader.gpu_use(0.0, 1.0) == reader.job_use(0.0, 1.0) == []
    assert reader.job_terms([job.id, "j9"]) == {job.id: (WORKLOAD, 0.05)}


@pytest.fixture
def platform(
    store: Store,
    serve: Callable[..., None],
    redis_client: "redis.Redis",
    config: Settings,
    begin_us: int,
    monkeypatch: pytest.MonkeyPatch,
) -> Settings:
    """Three hundred invocations in fifteen seconds on one GPU instance, with a table and a job."""
    store.register("default", "echo", SPEC)
    Tables(redis_client, PREFIX).publish(table())
    redis_client.sadd(f"{PREFIX}gpus", "cpu0")
    redis_client.set(f"{PREFIX}gpu:cpu0", encode_report(heartbeat(begin_us)))
    events: list[stream.Event] = [told(begin_us + second * 1_000_000) for second in range(16)]
    for number in range(300):
        state = "expired" if number % 10 == 9 else "succeeded"
        events += life(begin_us + number * 50_000, run_ms=50.0 + number % 5, state=state, cold=number == 0)
    serve(*events, *life(begin_us + 20_000_000, revision=7))
    settings = config.model_copy(update={"policy": PolicySettings(name="smore-product", knobs={"guard": 0.1})})
    monkeypatch.setattr(replay, "settings", lambda: settings)
    return settings


def test_a_replay_puts_what_happened_beside_what_would_have(
    platform: Settings, engine: Engine, redis_client: "redis.Redis", begin_us: int
) -> None:
    reports, tables = Fleet(redis_client, PREFIX).reports(), Tables(redis_client, PREFIX)
    found = replay.gather(PastRuns(engine), reports, tables, platform, *span(begin_us))

    assert len(found.span.served) == 300
    assert found.notes == ["1 invocations are of revisions that the catalog no longer knows."]
    assert (found.force, found.knobs) == ("smore-product", {"guard": 0.1})
    (gpu,) = found.span.gpus
    assert (gpu.slots, gpu.memory_mib, gpu.iteration_s, gpu.utilisation) == (
        3,
        1500.0,
        pytest.approx(0.1),
        pytest.approx(0.6),
    )
    columns = replay.replay(found, ["edf-util"], 1, 0)

    assert columns["happened"]["dsr"] == pytest.approx(0.9)
    assert columns["happened"]["sfd"] == pytest.approx(0.025)
    assert 0.0 < columns["force"]["dsr"] <= 1.0
    assert columns["other"]["dsr"] >= 0.9
    assert columns == replay.replay(found, ["edf-util"], 1, 0)
    twice = replace(found, force="random", knobs={})
    assert replay.replay(twice, ["edf-util"], 0, 1)["happened"] == columns["happened"]


def test_a_rule_of_ones_own_is_replayed(platform: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = tmp_path / "mine.py"
    rule.write_text(GUIDE.read_text().partition("```python\n")[2].partition("```")[0])
    assert replay.main(["--since", "1h", "--policy", f"{rule}:Mine"]) == 0
    printed = capsys.readouterr().out
    assert f"simulated: {rule}:Mine" in printed
    figures = json.loads(printed.splitlines()[-1])["figures"]
    # One GPU instance leaves no choice: the rest is the product's, its budget too.
    assert figures["dsr.other"] == pytest.approx(figures["dsr.force"], abs=0.1)
    assert replay.main(["--since", "1h", "--policy", f"{rule}:Yours"]) == 2
    assert "has no class 'Yours'; its classes are Mine" in capsys.readouterr().err


def test_the_command_prints_three_columns_and_what_it_cannot_know(
    platform: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay.main(["--since", "1h", "--policy", "edf-util", "--gpus", "+1"]) == 0

    printed = capsys.readouterr().out.splitlines()
    document = json.loads(printed[-1])
    assert document["command"] == "smore replay --since 1h --policy edf-util --gpus +1"
    assert document["figures"]["dsr.happened"] == 0.9 and document["figures"]["invocations"] == 300
    assert {"dsr.force", "dsr.other", "sfd.force"} <= set(document["figures"])
    assert list(document["columns"]) == ["happened", "force", "other"]
    assert document["columns"]["force"] == f"simulated: {document['force']}"
    text = "\n".join(printed[:-1])
    assert (
        "happened" in printed[1]
        and "simulated: smore-product" in printed[1]
        and "simulated: edf-util, +1 GPU" in printed[1]
    )
    assert "What this cannot know" in text and "no longer knows" in text


@pytest.mark.parametrize("named", ["edf-util,edf-util", ","])
def test_policies_are_named_once_each(platform: Settings, capsys: pytest.CaptureFixture[str], named: str) -> None:
    assert replay.main(["--policy", named]) == 2
    assert "at least one policy is expected, each once" in capsys.readouterr().err


def test_several_policies_have_a_column_each(
    platform: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay.main(["--since", "1h", "--policy", "edf-util,random", "--out", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["columns"]) == ["happened", "force", "other", "other_2"]
    assert document["columns"]["other_2"] == "simulated: random"
    assert "other_2,simulated: random,dsr," in (tmp_path / "columns.csv").read_text()


def test_what_cannot_be_replayed_is_one_line(
    config: Settings,
    engine: Engine,
    redis_client: "redis.Redis",
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(replay, "settings", lambda: config)
    for arguments, code, why in (
        (["--policy", "psychic"], 2, "'psychic' is not a policy"),
        (["--policy", "smore:psychic=1"], 2, "'psychic' is not a knob"),
        (["--policy", "edf-util"], 2, "since: no invocation has ended in this span"),
    ):
        assert replay.main(arguments) == code
        error = capsys.readouterr().err.strip().splitlines()
        assert len(error) == 1 and why in error[0]
    monkeypatch.setattr(replay, "settings", Settings)
    assert replay.main(["--policy", "edf-util"]) == 3
    assert "no platform is known here" in capsys.readouterr().err
    for wrong in (["--gpus", "1"], ["--since", "yesterday"], ["--since", "0h"]):
        with pytest.raises(SystemExit, match="2"):
            replay.main(["--policy", "edf-util", *wrong])
