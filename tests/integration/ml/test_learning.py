"""
Learning on real servers: rows in, predictors judged, tables published, taken back and restored; whatever fails, the
last one stays.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from ml.learn import learning, live
from ml.learn.learning import Learning
from ml.rows import Row, write
from smore.domain.errors import Conflict, InvalidInput, NotFound
from smore.domain.function import FunctionSpec, Profile
from smore.domain.ids import new_id
from smore.domain.predictor import PredictorState
from smore.messages.degradation import Table, decode
from smore.postgres.catalog import Store
from smore.postgres.job_pairs import JobPair, add_pairs, write_pairs
from smore.postgres.predictors import Profiles
from smore.process import observability
from smore.process.settings import QueueSettings, Settings
from smore.redis.celery import REPUBLISH, message
from smore.redis.queue import Queue
from smore.redis.tables import Tables
from tests.support.eventually import eventually
from tests.support.measured import (
    MODELS,
    PLACE,
    T0,
    alone_s,
    function,
    pairs,
    sets,
    slowdown,
    solo,
    solos,
    together,
    training,
)
from tests.support.placed_jobs import placed

ROOT = Path(__file__).resolve().parents[3]
PREFIX = "smore:"
HERE = PLACE.key
STATES = PredictorState


@pytest.fixture
def known(engine: Engine) -> Profiles:
    return Profiles(engine)


@pytest.fixture
def tables(redis_client: "redis.Redis") -> Tables:
    return Tables(redis_client, PREFIX)


@pytest.fixture
def door(engine: Engine, tables: Tables, tmp_path: Path) -> Learning:
    """A checkout with sixteen pairs."""
    put(tmp_path, [*solos(), *pairs(16)])
    return Learning(engine, tables, data=tmp_path)


def put(folder: Path, rows: Iterable[Row], name: str = "a.jsonl") -> None:
    for row in rows:
        write(folder / name, row)


def documents(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(asdict(row))) for row in rows]


def states(known: Profiles) -> dict[int, PredictorState]:
    """By how many versions ago, oldest first: versions go on counting from test to test."""
    found = known.predictors()
    return {number: one.state for number, one in enumerate(reversed(found), 1)}


def current(tables: Tables) -> Table:
    table = tables.current()
    assert table is not None
    assert table.version == tables.version()
    return table


def cell(
    table: Table, name: str = "function", row: str = "vgg16/cpu/training/8", column: str = "bert/cpu/function/2"
) -> float:
    place = table.place(*HERE)
    assert place is not None
    return place.cell(getattr(place, name), place.trainings.index(row), place.functions.index(column))


# Rows


def test_the_same_row_is_stored_once(known: Profiles) -> None:
    rows = documents([*solos(), *pairs(3)])

    assert known.add(rows, "imported") == 19
    assert known.add([dict(reversed(row.items())) for row in rows], "imported") == 0
    assert known.add(documents(pairs(4)), "live") == 1
    assert [(count.kind, count.source, count.count) for count in known.counts()] == [
        ("colocation", "imported", 3),
        ("colocation", "live", 1),
        ("solo", "imported", 16),
    ]
    stored = [document for _, document in known.documents()]
    assert len(stored) == 20
    assert rows[0] in stored
    assert {count.newest_at for count in known.counts()} == {T0, T0 + 120, T0 + 180}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"features": {"flops": math.nan}}, "rows[1].features.flops"),
        ({"seconds": math.inf}, "rows[1].seconds"),
        ({"command": "a\0b"}, "rows[1].command"),
        ({"place": {"device": "", "sharing_mode": "s"}}, "rows[1].place.device"),
        ({"place": None}, "rows[1].place"),
        ({"row": None}, "rows[1].row"),
        ({"at": "yesterday"}, "rows[1].at"),
    ],
)
def test_what_is_no_row_is_refused_and_nothing_of_it_stored(
    known: Profiles, change: dict[str, Any], field: str
) -> None:
    good, bad = documents(solos()[:2])

    with pytest.raises(InvalidInput) as refused:
        known.add([good, bad | change], "imported")
    assert refused.value.details["field"] == field
    assert known.counts() == []


def test_only_a_challenger_is_crowned_or_rejected(known: Profiles) -> None:
    version = known.begin({})
    known.promote(version, reason="r", manifest={}, table=b"t", artifact=b"a")

    with pytest.raises(Conflict):
        known.reject(version, reason="", manifest={})
    with pytest.raises(Conflict):
        known.promote(version, reason="", manifest={}, table=b"", artifact=b"")
    with pytest.raises(NotFound):
        known.reject(version + 1, reason="", manifest={})
    with pytest.raises(NotFound):
        known.blobs(version + 1)
    assert known.blobs(version) == (b"t", b"a")


def test_the_blobs_of_old_versions_go(known: Profiles) -> None:
    versions = []
    for _ in range(22):
        versions.append(known.begin({}))
        known.promote(versions[-1], reason="", manifest={}, table=b"t", artifact=b"a")

    with pytest.raises(NotFound):
        known.blobs(versions[1])
    assert known.blobs(versions[2]) == (b"t", b"a")
    former = known.before(versions[3])
    assert former is not None
    assert former.version == versions[2]
    assert known.before(versions[2]) is None


def test_an_interrupted_challenger_is_found(known: Profiles) -> None:
    known.begin({})
    known.begin({})

    assert states(known) == {1: STATES.REJECTED, 2: STATES.CHALLENGER}


def test_one_at_a_time_works(known: Profiles, engine: Engine, door: Learning) -> None:
    with known.exclusive(wait=False) as mine:
        assert mine
        with Profiles(engine).exclusive(wait=False) as other:
            assert not other
        assert door.retrain().result == "skipped"
        assert door.restore().result == "skipped"
    with known.exclusive(wait=True) as mine:
        assert mine


# Publishing


def test_the_first_table_comes_from_the_checkout(door: Learning, known: Profiles, tables: Tables) -> None:
    outcome = door.retrain(asked=False)

    assert outcome.result == "published"
    table, champion = current(tables), known.champion()
    assert champion is not None
    assert champion.version == table.version == outcome.version
    assert champion.reason.startswith("The first: ")
    assert champion.manifest["rows"]["checkout"] == 32
    (place,) = champion.manifest["places"]
    assert place["directions"]["function"]["verdict"] == "new"
    assert place["directions"]["function"]["challenger"] < 0.2
    assert decode(known.blobs(table.version)[0]) == table
    assert cell(table) == pytest.approx(slowdown(function("bert", 2), training("vgg16", 8)), rel=0.3)
    assert cell(table, "function_upper") >= cell(table)
    # Nothing is new: nothing is done, and it is not written down.
    assert door.retrain(asked=False).result == "skipped"
    assert states(known) == {1: STATES.CHAMPION}


def test_a_better_challenger_takes_over(door: Learning, known: Profiles, tables: Tables) -> None:
    first = door.retrain().version
    # The device has become slower: three times the degradation.
    known.add(documents(pairs(48, start=T0 + 86_400, skip=16, factor=3.0)), "imported")
    assert door.retrain(asked=False).result == "skipped"
    known.add(documents(solos(batches=(4,))), "imported")

    outcome = door.retrain(asked=False)
    assert outcome.result == "published"
    assert "function better (RMSLE" in outcome.reason
    assert states(known) == {1: STATES.RETIRED, 2: STATES.CHAMPION}
    assert outcome.version is not None and current(tables).version == outcome.version > (first or 0)
    champion = known.champion()
    assert champion is not None
    judged = champion.manifest["places"][0]["directions"]["function"]
    assert (judged["verdict"], judged["held_pairs"]) == ("better", 24)
    assert judged["challenger"] < judged["champion"]


def test_a_worse_challenger_is_rejected(
    door: Learning, known: Profiles, tables: Tables, redis_client: "redis.Redis"
) -> None:
    door.retrain()
    before = redis_client.get(f"{PREFIX}degradation:table")
    # What it would learn from is wrong, what it is judged by is right.
    known.add(documents(pairs(24, start=T0 + 86_400, skip=16, factor=9.0)), "imported")
    known.add(documents(pairs(24, start=T0 + 172_800, skip=40)), "imported")

    outcome = door.retrain()
    assert outcome.result == "kept"
    assert "function kept (RMSLE" in outcome.reason
    assert states(known) == {1: STATES.CHAMPION, 2: STATES.REJECTED}
    assert redis_client.get(f"{PREFIX}degradation:table") == before


def test_nothing_newer_is_no_reason_to_publish(door: Learning, known: Profiles) -> None:
    door.retrain()

    assert door.retrain(asked=True).result == "kept"
    assert states(known) == {1: STATES.CHAMPION, 2: STATES.REJECTED}
    assert door.retrain(asked=True, anew=True).result == "published"


def test_places_are_learned_apart(door: Learning, known: Profiles, tables: Tables) -> None:
    from dataclasses import replace

    mps = replace(PLACE, sharing_mode="mps")
    few = replace(PLACE, device="few")
    known.add(
        documents([*solos(mps), *pairs(16, place=mps, factor=5.0), *solos(few), *pairs(3, place=few)]), "imported"
    )
    door.retrain()

    table = current(tables)
    assert {(place.device, place.sharing_mode) for place in table.places} == {HERE, mps.key}
    there, here = table.place(*mps.key), table.place(*HERE)
    assert there is not None
    assert here is not None
    assert there.cell(there.function, 1, 1) > 2 * here.cell(here.function, 1, 1)
    # A place that nobody knows has no table: readers take the conservative rule.
    assert table.place("another device", "mps") is None
    champion = known.champion()
    assert champion is not None
    assert champion.manifest["absent"] == [
        {
            "device": "few",
            "sharing_mode": "time-slice",
            "why": "fewer than 10 pairs of the direction training, function",
        }
    ]


# Failing


def test_a_cut_file_leaves_the_last_good_table(door: Learning, known: Profiles, tables: Tables, tmp_path: Path) -> None:
    good = door.retrain().version
    path = tmp_path / "b.jsonl"
    put(tmp_path, pairs(4, skip=20), path.name)
    path.write_bytes(path.read_bytes()[:-10])

    outcome = door.retrain()
    assert (outcome.result, tables.version()) == ("failed", good)
    assert "b.jsonl:4" in outcome.reason
    assert states(known) == {1: STATES.CHAMPION, 2: STATES.REJECTED}
    # The same again is not written down again, unless somebody asks.
    assert door.retrain(asked=False).version == outcome.version
    assert len(known.predictors()) == 2


def test_features_that_are_no_numbers_leave_the_last_good_table(door: Learning, tables: Tables, tmp_path: Path) -> None:
    good = door.retrain().version
    put(tmp_path, [solo(training("bert", 4), flops=math.nan)])

    outcome = door.retrain()
    assert (outcome.result, tables.version()) == ("failed", good)
    assert "flops is nan" in outcome.reason


def test_a_stored_row_that_is_not_understood_is_passed_over(door: Learning, known: Profiles) -> None:
    (row,) = documents([solo(training("bert", 4))])
    known.add([row | {"version": 7}], "imported")

    assert door.retrain().result == "published"
    champion = known.champion()
    assert champion is not None
    assert "version 7, 1 is expected" in champion.manifest["rows"]["passed_over"][0]


@pytest.mark.parametrize("damage", ["artifact = substring(artifact for 500)", "artifact = 'PK'"])
def test_a_damaged_artifact_leaves_the_last_good_table(
    damage: str, door: Learning, known: Profiles, tables: Tables, engine: Engine
) -> None:
    good = door.retrain().version
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE predictors SET {damage}"))
    known.add(documents(pairs(20, start=T0 + 86_400, skip=16)), "imported")

    outcome = door.retrain()
    assert (outcome.result, tables.version()) == ("failed", good)
    assert "the artifact is damaged" in outcome.reason
    assert "--anew" in outcome.reason
    anew = door.retrain(anew=True)
    assert (anew.result, tables.version()) == ("published", anew.version)


def test_no_rows_at_all_are_no_failure(engine: Engine, tables: Tables, known: Profiles, tmp_path: Path) -> None:
    assert Learning(engine, tables, data=tmp_path).retrain().result == "skipped"
    assert known.predictors() == []


# Taking back


def test_roll_back_publishes_the_one_before_under_a_new_version(
    door: Learning, known: Profiles, tables: Tables
) -> None:
    door.retrain()
    first = current(tables)
    for day in (1, 2):
        known.add(documents(pairs(20, start=T0 + day * 86_400, skip=20 * day - 4, factor=3.0 * day)), "imported")
        assert door.retrain().result == "published"
    third = current(tables)

    outcome = door.roll_back()
    assert outcome.result == "published"
    assert outcome.version == current(tables).version > third.version
    assert states(known) == {1: STATES.RETIRED, 2: STATES.RETIRED, 3: STATES.ROLLED_BACK, 4: STATES.CHAMPION}
    assert known.predictors()[1].reason == f"Rolled back from version {third.version} to version {third.version - 1}."
    # What is there has been seen: the same challenger does not come back by itself.
    assert door.retrain(asked=False).result == "skipped"

    door.roll_back()
    again = current(tables)
    assert (again.places, again.source) == (first.places, first.source)
    assert again.version > first.version
    with pytest.raises(NotFound, match="no predictor before"):
        door.roll_back()
    assert current(tables) == again


def test_there_is_nothing_to_roll_back_at_first(door: Learning) -> None:
    with pytest.raises(NotFound):
        door.roll_back()
    door.retrain()
    with pytest.raises(NotFound):
        door.roll_back()


def test_a_damaged_predecessor_is_not_published(
    door: Learning, known: Profiles, tables: Tables, engine: Engine
) -> None:
    door.retrain()
    door.retrain(anew=True)
    version = tables.version()
    with engine.begin() as connection:
        connection.execute(text('UPDATE predictors SET "table" = substring("table" for 99) WHERE state = \'retired\''))

    with pytest.raises(ValueError, match="cannot be published again"):
        door.roll_back()
    assert tables.version() == version
    assert states(known) == {1: STATES.RETIRED, 2: STATES.CHAMPION}


def test_a_redis_that_was_emptied_gets_the_table_back(
    door: Learning, tables: Tables, redis_client: "redis.Redis"
) -> None:
    assert door.restore().result == "skipped"
    door.retrain()
    table = current(tables)
    assert door.restore().result == "skipped"
    redis_client.flushdb()

    assert door.restore().result == "published"
    assert current(tables) == table
    redis_client.flushdb()
    door.retrain(asked=False)
    assert current(tables) == table


# From the history


BERT, VGG = function("bert", 2), training("vgg16", 8)


def history(
    engine: Engine, store: Store, run_s: Sequence[float], *, at: float, gpu: str = "cpu0", mode: str = HERE[1]
) -> None:
    """
    Runs of a function that says it is ``bert/cpu``, one every tenth of a second from ``at`` on beside a job that says
    what it is.
    """
    revision, _ = store.register("default", "reader", FunctionSpec(entrypoint="m:C", profile=Profile(model="bert/cpu")))
    job = placed(store, "night", [gpu], workload=str(VGG))
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE jobs SET created_at = :at, started_at = :at WHERE id = :id"),
            {"at": datetime.fromtimestamp(at - 60, UTC), "id": job.id},
        )
        for number, seconds in enumerate(run_s):
            start = at + number / 10
            values = {
                "id": new_id(),
                "revision": revision,
                "gpu": gpu,
                "run_s": seconds,
                "rows": BERT.batch,
                "jobs": json.dumps([job.id]),
                "device": HERE[0],
                "mode": mode,
                "start": datetime.fromtimestamp(start, UTC),
                "end": datetime.fromtimestamp(start + 0.09, UTC),
                "decision": number + int(at),
            }
            connection.execute(
                text(
                    "INSERT INTO invocations (id, project, function, revision, state, cause, attempt, starts,"
                    " arrival_at, deadline_at, gpu, rows, key_id, trace) VALUES (:id, 'default', 'reader', :revision,"
                    " 'succeeded', 'ok', 1, 1, :start, :end, :gpu, :rows, '', '')"
                ),
                values,
            )
            connection.execute(
                text(
                    "INSERT INTO executions (invocation, attempt, project, function, gpu, decision_id, state, cause,"
                    " cold, run_s, batch, rows, co_runners, jobs, device, sharing_mode, claimed_at, started_at,"
                    " finished_at) VALUES (:id, 1, 'default', 'reader', :gpu, :decision, 'succeeded', 'ok', false,"
                    " :run_s, 1, :rows, '[]', :jobs, :device, :mode, :start, :start, :end)"
                ),
                values,
            )


def test_executions_become_rows_once(
    door: Learning, engine: Engine, store: Store, known: Profiles, tables: Tables
) -> None:
    history(engine, store, [0.08] * 120, at=time.time() - 600)
    history(engine, store, [0.08] * 120, at=time.time() - 300, gpu="cpu1", mode="mps")
    door.retrain()

    stored = [count for count in known.counts() if count.source == "live"]
    assert [(count.device, count.sharing_mode, count.kind, count.count) for count in stored] == [(*HERE, "observed", 1)]
    champion = known.champion()
    assert champion is not None
    assert champion.manifest["rows"]["observed"] == 1
    assert champion.manifest["live_passed_over"] == {"not profiled here": 120}
    # The measured value stands in the table: no run was alone, so that the profile's P99 is what it is compared with.
    assert cell(current(tables)) == pytest.approx(0.08 / (1.2 * alone_s(BERT)) - 1)
    door.retrain()
    assert [count.count for count in known.counts() if count.source == "live"] == [1]


def test_pairs_of_trainings_become_rows(door: Learning, engine: Engine, store: Store, known: Profiles) -> None:
    """Of both sides, if they ran nearly freely on one GPU instance."""
    now = time.time()
    resnet = training("resnet50", 8)
    night, day, late, gang = (
        placed(store, name, gpus, workload=str(workload))
        for name, gpus, workload in (
            ("night", ["cpu0"], VGG),
            ("day", ["cpu0"], resnet),
            ("late", ["cpu0"], resnet),
            ("gang", ["cpu0", "cpu1"], VGG),
        )
    )
    with Session(engine) as session:
        for job, other, alone_s, beside_s, held_s in (
            (night, day, 0.1, 0.15, 20.0),
            (day, night, 0.2, 0.25, 0.0),
            (day, gang, 0.2, 0.8, 0.0),
            (night, late, 0.1, 0.9, 100.0),
            (gang, night, 0.1, 0.9, 0.0),
        ):
            pair = JobPair(
                job=job.id,
                attempt=1,
                other=other.id,
                other_attempt=1,
                guest=job is day,
                gpus=["cpu0"],
                device=HERE[0],
                sharing_mode=HERE[1],
                from_at=now - 600,
            )
            add_pairs(session, [pair])
            pair.measured, pair.alone_s, pair.beside_s, pair.held_s = beside_s / alone_s, alone_s, beside_s, held_s
            write_pairs(session, [pair])
        session.commit()
    history = live.read(engine, since=now - 3600, until=now - 60)
    rows = live.live_rows(history, {HERE: {workload: solo(workload) for workload in (VGG, resnet)}}).rows
    assert {(row.victim, row.aggressor): row.degradation for row in rows} == {
        (VGG, resnet): pytest.approx(0.5),
        (resnet, VGG): pytest.approx(0.25),
    }
    # They go on: measured until now.
    assert [row.at for row in rows] == [pytest.approx(now - 60, abs=1e-3)] * 2
    door.retrain()
    assert sum(count.count for count in known.counts() if count.source == "live") == 2


def test_sets_observed_by_the_platform_teach_weights(door: Learning, known: Profiles, tables: Tables) -> None:
    assert door.retrain().result == "published"
    assert current(tables).places[0].weights == []

    # No newer pairs: the predictors stay, the weights are what has won.
    known.add([row.document() for row in sets(0, 60, 2.0)], "live")
    learned = door.retrain()
    assert learned.result == "published"
    champion = known.champion()
    assert champion is not None
    (place,) = champion.manifest["places"]
    assert {name: one["verdict"] for name, one in place["directions"].items()} == {
        "training": "kept",
        "function": "kept",
    }
    assert (place["weights"]["training"]["verdict"], place["weights"]["training"]["sets"]) == ("better", 60)
    weights = current(tables).places[0].weights
    assert {one.kind for one in weights} == {"training"}

    # The same sets again say nothing new.
    assert door.retrain().result == "kept"
    # What has changed since is learned against the weights of the published table.
    known.add([row.document() for row in sets(60, 100, 4.0)], "live")
    assert door.retrain().result == "published"
    assert current(tables).places[0].weights != weights


def test_drift_falls_back_to_the_conservative_rule(
    door: Learning, engine: Engine, store: Store, known: Profiles, tables: Tables
) -> None:
    then = time.time() - 3600
    Learning(engine, tables, data=door.data, clock=lambda: then).retrain()
    slow = 1.2 * alone_s(BERT) * (1 + cell(current(tables), "function_upper")) * 1.5
    history(engine, store, [0.01] * 40 + [slow] * 160, at=then + 120)

    outcome = door.retrain(asked=False)
    table = current(tables)
    assert (outcome.result, outcome.version) == ("published", table.version)
    assert table.place(*HERE) is None
    champion = known.champion()
    assert champion is not None
    assert champion.version == table.version
    assert champion.reason.startswith("Drift: ")
    assert "40 of 200 runs within their bound" in champion.reason
    assert champion.manifest["suspended"] == [list(HERE)]
    assert states(known) == {1: STATES.RETIRED, 2: STATES.CHAMPION}

    # A challenger that wins brings the place back.
    known.add(documents(pairs(48, start=T0 + 86_400, skip=16, factor=4.0)), "imported")
    assert door.retrain().result == "published"
    assert current(tables).place(*HERE) is not None
    champion = known.champion()
    assert champion is not None
    assert champion.manifest["suspended"] == []


# Processes


@pytest.fixture
def environment(config: Settings) -> dict[str, str]:
    assert config.redis.url is not None
    assert config.postgres.url is not None
    return os.environ | {
        "SMORE_REDIS__URL": config.redis.url,
        "SMORE_POSTGRES__URL": config.postgres.url,
        "PYTHONPATH": str(ROOT),
        # As control starts them: with two threads a fit of small matrices takes several times the processor time.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


@pytest.fixture
def command(
    config: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, dict[str, Any]]]:
    """Runs the command in this process: its exit status and its last line. Its checkout has no rows."""
    monkeypatch.setattr(learning, "settings", lambda: config)
    monkeypatch.setattr(learning, "Learning", partial(Learning, data=tmp_path / "checkout"))
    # The process of the tests keeps its log and its priority.
    monkeypatch.setattr(observability, "configure", lambda *_: None)
    monkeypatch.setattr(learning, "yield_to_others", lambda _: None)

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        status = learning.main(words)
        return status, json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


def test_the_command_line(
    command: Callable[..., tuple[int, dict[str, Any]]],
    environment: dict[str, str],
    known: Profiles,
    tables: Tables,
    tmp_path: Path,
) -> None:
    put(tmp_path, [*solos(), *pairs(16)])
    files = [str(tmp_path / "a.jsonl")]

    assert command("import", *files) == (
        0,
        {"result": "stored", "reason": "32 of 32 rows are new.", "version": None},
    )
    assert command("import", *files)[1]["reason"] == "0 of 32 rows are new."
    (tmp_path / "cut.jsonl").write_text('{"version"')
    status, outcome = command("import", str(tmp_path / "cut.jsonl"))
    assert (status, outcome["result"]) == (1, "failed")
    assert "cut.jsonl:1" in outcome["reason"]
    status, outcome = command("retrain")
    assert (status, outcome["result"], outcome["version"]) == (0, "published", tables.version())
    status, outcome = command("rollback")
    assert (status, outcome["result"]) == (1, "failed")
    assert command("restore")[1]["result"] == "skipped"
    # One as a process of its own.
    argv = [sys.executable, "-m", "ml.learn.learning", "show"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    status, shown = done.returncode, json.loads(done.stdout.splitlines()[-1])
    assert (status, shown["champion"], shown["published"]) == (0, tables.version(), tables.version())
    assert shown["predictors"][0]["state"] == "champion"
    assert {count["count"] for count in shown["rows"]} == {16}


#: ``control``, which waits a minute less.
CONTROL = """
from scheduler import worker
from scheduler.tasks import learn
learn.START_S = 0.0
worker.main("control", "control")
"""


@pytest.fixture
def learner(environment: dict[str, str], redis_client: "redis.Redis", known: Profiles) -> Iterator[psutil.Process]:
    """The control process, with rows to learn from."""
    known.add(documents([*solos(), *pairs(16)]), "imported")
    with subprocess.Popen([sys.executable, "-c", CONTROL], env=environment) as process:
        yield psutil.Process(process.pid)
        process.terminate()
        assert process.wait(20) == 0


def recorded(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.execute(text("SELECT count(*) FROM stream_cursor WHERE last_id <> '0-0'")).scalar())


def test_control_learns_at_its_start_and_restores(
    learner: psutil.Process, known: Profiles, tables: Tables, redis_client: "redis.Redis", engine: Engine
) -> None:
    (child,) = eventually(learner.children, what="the first look")
    # Its parent makes it nice once it is there.
    eventually(lambda: child.nice() >= 10 > learner.nice(), what="a nice child")
    eventually(lambda: tables.version() > 0 and not learner.children(), within_s=60, what="the first table")
    # Idle it is small: what a fit takes went with its process.
    assert learner.memory_full_info().pss < 110 << 20
    first = known.champion()
    assert first is not None
    # Nobody has sent it anything: it records by itself, and fires what beat fires.
    Queue(redis_client, PREFIX, QueueSettings()).report("cpu0", b"{}", ttl_s=60, lease_s=2, cursor="", running=[])
    eventually(partial(recorded, engine), what="the history")

    # Beat asks every ten seconds: it looks, and knows from then on that there is a table to miss.
    version = f"{PREFIX}degradation:version"
    redis_client.config_resetstat()
    redis_client.lpush(f"{PREFIX}learn", message(REPUBLISH, [], "learn"))
    eventually(
        lambda: redis_client.info("commandstats").get("cmdstat_get", {}).get("calls", 0) > 0, what="the worker's look"
    )

    redis_client.delete(f"{PREFIX}degradation:table", version)
    redis_client.lpush(f"{PREFIX}learn", message(REPUBLISH, [], "learn"))
    eventually(lambda: redis_client.get(version) is not None, within_s=60, what="the table")
    assert tables.version() == first.version


def test_the_device_of_the_tests_is_sound() -> None:
    """A smaller victim beside a larger aggressor suffers more: what the other tests build upon."""
    assert slowdown(function(MODELS[0]), training(MODELS[2])) > slowdown(function(MODELS[2]), training(MODELS[0]))
    row = together(training(), function(), T0)
    assert row.kind == "pair"
