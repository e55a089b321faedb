"""``smore up``, ``down``, ``health``, ``version`` and ``doctor``: the platform of this machine."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from smore.cli.gpus import unmeasured
from smore.cli.terminal import (
    EXIT_FAILED,
    EXIT_USAGE,
    Column,
    Output,
    OutputOption,
    configuration,
    connected,
    fail,
    platform_home,
    say_page,
    searched,
    show,
    show_value,
    tell,
    warn_of_unknown_settings,
    write,
)

if TYPE_CHECKING:
    from smore.local.asking import Endpoints
    from smore.local.supervision import End
    from smore_client import Client
    from smore_client.transport import Answer, Call
    from smore_client.types import Job

#: Seconds that `down --jobs` waits for trainings to end.
END_S: Final = 20.0
#: Seconds that `health` and `doctor` wait for the answer to a question, which they do not repeat.
ANSWER_S: Final = 2.0
#: Trainings that are over among which `health` looks for those that failed lately, the newest first.
MOST_TRAININGS: Final = 1000


def up(
    foreground: Annotated[
        bool, typer.Option("--foreground", "-F", help="Stay, and stop everything on Ctrl-C.")
    ] = False,
) -> None:
    """Start the whole platform on this machine, and return when it is ready; where it runs already, say where."""
    from smore.local import embedded, machine, started_settings
    from smore.process.environment import InvalidSetting

    home = platform_home()
    warn_of_unknown_settings()
    if changed := started_settings.changed_settings(home, configuration()):
        write(differing(changed), error=True)
    new_key = not (home / "key").exists()
    try:
        if foreground:
            start = partial(machine.up, progress=_progress)
            machine.run_foreground(home, start=start, started=lambda ends: _greet(ends, home, new_key))
        else:
            _greet(machine.up(home, progress=_progress), home, new_key)
    except InvalidSetting as error:
        fail(str(error), EXIT_USAGE)
    except (embedded.ServerMissing, embedded.StartFailed) as error:
        fail(str(error))


def _greet(endpoints: "Endpoints", home: Path, new_key: bool) -> None:
    """Say what there is, once what no request needs works too: the queue of trainings, the metrics."""
    from smore.local import asking

    faults = asking.await_rest(endpoints, _progress)
    write(greeting(endpoints, home, new_key), flush=True)
    for process, fault in faults:
        write(f"warning: {fault}; {home.resolve() / 'logs' / process}.log may say why", error=True)


def differing(changed: Mapping[str, tuple[str, str]]) -> str:
    """What is said where this shell's settings are not those that the running platform was started with."""
    values = "; ".join(f"{name} is {there} there and {here} here" for name, (there, here) in changed.items())
    return (
        f"smore: the platform runs already, and was started with other settings: {values}. `smore down`, then `smore up`"
        " start it with those of this shell (trainings go on); `smore settings --running` shows those in force."
    )


def _progress(waits_for: str) -> None:
    write(f"waiting: {waits_for}", error=True, flush=True)


def _leader(ready: dict[str, Any], home: Path) -> str:
    """The process that decides: its name on this machine, else host and process number."""
    from smore.local import machine

    process = str(ready.get("checks", {}).get("leader", {}).get("detail", ""))
    pid = process.rpartition(":")[2]
    name = next((one.name for one in machine.status(home) if str(one.pid) == pid), None)
    return f"{name} (process {pid})" if name is not None else process


def _devices(endpoints: "Endpoints", key: str, home: Path) -> str:
    """Who decides and what computes, a line each."""
    from smore_client import Client, ClientError

    try:
        with Client(endpoints.gateway_url, key) as client:
            ready, gpus, places = client.ready(), client.gpus(), client.predictor().places
    except ClientError as error:
        return f"Not ready:   {error}"
    lines = [f"Leader:      {_leader(ready, home)}"]
    for number, gpu in enumerate(gpus):
        lines.append(f"{'Devices:' if not number else '':<12} {gpu.id}  {gpu.device}")
    for warning in ready.get("warnings", ()):
        lines.append(f"Warning:     {warning}")
    return "\n".join([*lines, *filter(None, [unmeasured(gpus, places)])])


def greeting(endpoints: "Endpoints", home: Path, new_key: bool) -> str:
    """
    What ``up`` prints: the address of the platform, the API key, who decides, what computes, three commands to paste.
    ``new_key``: this start made the key, which is shown whole once.
    """
    file = home / "key"
    try:
        key = file.read_text().strip()
    except OSError:
        key = "not there"
    call = f'curl -sS -H "Authorization: Bearer $(cat {file})" -H "Content-Type: application/json"'
    functions_url = f"{endpoints.gateway_url}/v1/functions/echo"
    document = {
        "apiVersion": "smore/v1",
        "kind": "Function",
        "metadata": {"name": "echo"},
        "spec": {"entrypoint": "zoo.echo:Function"},
    }
    return f"""\
SMore is up: {endpoints.gateway_url}   (API document: {endpoints.gateway_url}/docs)
Dashboard:   {endpoints.gateway_url}/ui/   (smore open)
API key:     {key if new_key else _shortened(key)}   ({"in" if new_key else "whole: cat"} {file})
Folder:      {home.resolve()}   (logs in {home.resolve() / "logs"})
{_devices(endpoints, key, home)}

Deploy a function:
  {call} -X PUT {functions_url} -d '{json.dumps(document)}'
Run it:
  {call} {functions_url}/invocations -d '{{"input": {{"x": [1, 2, 3]}}}}'
See the GPU instances:
  smore gpus

`smore down` ends it, `smore logs -f` shows what it does."""


def _shortened(key: str) -> str:
    return f"{key[:4]}…{key[-4:]}" if len(key) > 12 else key


def down(jobs: Annotated[bool, typer.Option("--jobs", help="End training jobs too.")] = False) -> None:
    """
    Stop the platform of this machine; what is queued stays on disk, and training goes on unless --jobs is given. Exit
    code 1 where --jobs has not ended all of them.
    """
    from smore.local import machine, trainings
    from smore_client import Client, ClientError

    home = platform_home()
    training: Sequence[Job | trainings.Training] = []
    unknown = ""
    if (endpoints := machine.endpoints(home)) is not None:
        try:
            # The platform of this folder, with its own key: SMORE_URL may name another one, SMORE_API_KEY a team's.
            with Client(endpoints.gateway_url, _own_key(home)) as client:
                training = _end_trainings(client) if jobs else _trainings(client)
        except ClientError as error:
            unknown = str(error)
    machine.down(home)
    if endpoints is None or unknown:
        training = trainings.left_running(home)
    for job in training:
        where = f"({job.id}, project {job.project}) on {', '.join(job.gpus)}"
        write(f"training goes on: {job.name} {where}; the next `smore up` adopts it")
    if unknown:
        ended = "none was ended" if jobs else "those that ran go on"
        write(f"smore: which trainings run could not be asked, {ended}: {unknown}", error=True)
    if jobs and (training or unknown):
        # To end the processes is not enough: the next leader sees an attempt that failed, and may start another one.
        fail("only a running platform ends trainings for good: `smore up`, then `smore down --jobs`")


def backup(
    folder: Annotated[Path, typer.Argument(help="The copy, a new folder: SMORE_HOME of a platform of its own.")],
) -> None:
    """Copy the running platform of this machine into a folder, from which `smore up` starts it as it was."""
    from smore.local import backup, embedded, machine

    home = platform_home()
    endpoints = machine.endpoints(home)
    if endpoints is None:
        fail(f"no platform runs in {home}: one that is down is copied by `cp -a {home} {folder}`")
    try:
        backup.backup(home, folder, endpoints.redis_url, endpoints.postgres_url)
    except (backup.BackupFailed, embedded.ServerMissing) as error:
        fail(str(error))
    write(f"Copied {home} to {folder}.")


def _own_key(home: Path) -> str | None:
    """The key that ``up`` has written."""
    try:
        return (home / "key").read_text().strip() or None
    except OSError:
        return None


def _trainings(client: "Client") -> "list[Job]":
    """Those of all projects that hold GPU instances."""
    return list(client.each_job(("starting", "running", "stopping"), all_projects=True))


def _end_trainings(client: "Client") -> "list[Job]":
    """End those of all projects; returns the ones that have not ended after :data:`END_S`."""
    from smore_client import admin

    until = time.monotonic() + END_S
    training = _trainings(client)
    for job in training:
        client.carry(admin.change_job(job.id, "stop", project=job.project))
    while training and time.monotonic() < until:
        time.sleep(0.1)
        left = {job.id for job in _trainings(client)}
        training = [job for job in training if job.id in left]
    return training


def health(output: OutputOption = Output.TABLE) -> None:
    """
    Whether the platform can do work, and this machine's processes. Exit code 1 where it cannot.

    No question waits longer than 2 s for its answer, and none is asked twice: what is not known then is said so.
    """
    from smore.local import asking, machine

    home = platform_home()
    processes, ends, own = machine.status(home), machine.ends(home), machine.endpoints(home)
    silent = asking.without_metrics(own) if own is not None else {}
    if output is Output.TABLE:
        if own is not None:
            write(f"{'folder':<24} {home.resolve()}, logs in {home.resolve() / 'logs'}")
        for process in processes:
            end = ends.get(process.name)
            port = "" if own is None or process.name in silent else _metrics(own.metrics_ports.get(process.name))
            write(f"{process.name:<24} {process.state:<10} {process.pid or '-'}{port}{_unasked(end) if end else ''}")
        for name, why in silent.items():
            write(f"warning: {asking.unserved(name, why)}", error=True)
    if (abandoned := machine.abandoned(platform_home())) is not None:
        write(f"warning: the supervisor (process {abandoned[0]}) was killed; `smore up` takes over", error=True)
    with connected() as client, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_failed_trainings, client)
        ready = _readiness(client)
        url, (failed, unknown) = client.url, asked.result()
    checks = ready.get("checks", {})
    of = f"of {home.resolve()}" if own is not None and own.instance == ready.get("instance") else "of another folder"
    missing = [name for name, check in checks.items() if not check["ok"]]
    if output is not Output.TABLE:
        counted = {name: asdict(end) for name, end in ends.items()}
        metrics = dict(own.metrics_ports) if own is not None else {}
        here = {"folder": str(home.resolve()), "logs": str(home.resolve() / "logs")} if own is not None else {}
        shown = {**here, "processes": processes, "ends": counted, "metrics_ports": metrics, "no_metrics": silent}
        trainings = None if unknown else failed
        show_value({"url": url, "answers": of, **shown, **ready, "failed_trainings": trainings}, output)
    else:
        write(f"{'platform':<24} {'answers':<10} {url} {of}")
        for name, check in checks.items():
            write(f"{name:<24} {'ok' if check['ok'] else 'not ok':<10} {check['detail'] or '-'}")
        if leader := ready.get("job_leader"):
            state = "fails" if ready.get("job_leader_fails") else "ok"
            write(f"{'leader of trainings':<24} {state:<10} {leader}")
        if unknown:
            away = (f"{part.capitalize()} is away" for part in ("postgres", "redis") if part in missing)
            write(f"{'trainings':<24} {'not known':<10} {next(away, unknown)}")
        elif failed:
            write(f"{'trainings':<24} {'note':<10} ended badly within the last hour: {'; '.join(failed)}")
        for warning in ready.get("warnings", ()):
            write(f"warning: {warning}", error=True)
    if not ready.get("ready", True):
        fail(f"the platform is not ready: {', '.join(name for name in missing if name != 'postgres')}")


def _failed_trainings(client: "Client") -> tuple[list[str], str]:
    """
    Those that failed within the last hour, in words: of all projects where the key may read them, else of its own. Then
    why they are not known, "" = they are.
    """
    from smore.cli.job_words import failures
    from smore_client import ClientError
    from smore_client.many import listed_jobs
    from smore_client.transport import read_answer, refusal
    from smore_client.types import Jobs

    since = datetime.now().astimezone() - timedelta(hours=1)
    try:
        for all_projects in (True, False):
            answer = _asked_once(client, listed_jobs(("ended", "lost"), None, all_projects, limit=MOST_TRAININGS))
            if answer.status < 400:
                return failures(read_answer(answer, Jobs).jobs, since), ""
            if answer.status != 403:
                break
        return [], refusal(answer).detail
    except ClientError as error:
        return [], str(error)


def _metrics(port: int | None) -> str:
    return f"  metrics on port {port}" if port is not None else ""


def _unasked(end: "End") -> str:
    times = "once" if end.count == 1 else f"{end.count} times"
    return f"  ended unasked {times}, last at {end.at} ({end.how})"


def _readiness(client: "Client") -> Mapping[str, Any]:
    """What the platform says of its readiness, ready or not."""
    from smore_client.transport import Call, read_answer, refusal

    answer = _asked_once(client, Call(method="GET", path="/readyz"))
    error = refusal(answer)
    if answer.status >= 400 and "checks" not in error.body:
        raise error
    return read_answer(answer, dict[str, Any])


def _asked_once(client: "Client", call: "Call") -> "Answer":
    """The answer to a request that waits :data:`ANSWER_S` at most and is not sent again. Raises Unreachable."""
    from smore_client import Unreachable
    from smore_client.transport import Answer

    outcome = client.perform(replace(call, timeout_s=ANSWER_S))
    if isinstance(outcome, Answer):
        return outcome
    raise Unreachable(outcome.reason if outcome is not None else "")


def version(output: OutputOption = Output.TABLE) -> None:
    """The version of this program."""
    from smore.process import observability

    tell(observability.version(), {"version": observability.version()}, output)


def doctor(output: OutputOption = Output.TABLE) -> None:
    """
    Look at the running installation for what is known to go wrong, with a remedy for each. Exit code 1 where something
    is broken. In a folder without a platform it shows what the one at SMORE_URL says of itself.
    """
    from smore.local import doctor as checks
    from smore.local import machine
    from smore.local.findings import Finding, Grade

    config = configuration()
    url = os.environ.get("SMORE_URL")
    if config.redis.url is None and machine.endpoints(config.home) is None:
        write(f"smore: {searched()}", error=True)
    if config.redis.url is None and url and not (config.home / "supervisord.conf").exists():
        with connected() as client:
            findings = checks.of_another_machine(url, _readiness(client))
    else:
        findings = checks.examine(checks.site(config))
    if output is not Output.TABLE:
        show_value(findings, output)
    else:
        columns: list[Column[Finding]] = [
            ("", lambda f: f.verdict.value),
            ("what", lambda f: f.name),
            ("found", lambda f: f.found),
        ]
        show(findings, columns, output)
        for finding in findings:
            if finding.fix:
                write(f"{finding.verdict.value}: {finding.name}\n  {finding.fix}")
        if end := machine.endpoints(config.home):
            say_page(end.gateway_url)
    broken = [finding.name for finding in findings if finding.verdict is Grade.BROKEN]
    if broken:
        fail(f"broken: {', '.join(broken)}", EXIT_FAILED)
