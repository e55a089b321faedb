"""Where the platform of a home is reached, what it says of itself over HTTP, and what is waited for after it is ready."""

import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from smore.local import ports, scrape

#: Seconds for what no request needs: a leader of the queue of trainings, the metrics of all processes.
REST_S: Final = 20.0
#: Seconds between two questions.
ASK_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """The addresses of the platform of a home."""

    home: str
    gateway_url: str
    #: For redis-py; it contains the password.
    redis_url: str
    #: For SQLAlchemy; it contains the password.
    postgres_url: str
    supervisor_pid: int
    #: The id that this platform's gateway answers with.
    instance: str = ""
    #: The address and the ports at which the other processes serve their metrics, by name.
    metrics_host: str = "127.0.0.1"
    metrics_ports: Mapping[str, int] = field(default_factory=dict)


def asked(host: str, port: int, path: str) -> dict[str, Any] | None:
    """The JSON of a GET; None where no answer came. Anything else than a JSON object is an empty one."""
    connection = http.client.HTTPConnection(ports.connectable(host), port, timeout=5.0)
    try:
        connection.request("GET", path)
        body = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException):
        return None
    except ValueError:
        return {}
    finally:
        connection.close()
    return body if isinstance(body, dict) else {}


def answering_instance(url: str) -> str | None:
    """The id of the installation whose gateway answers at a URL, "" = the answer has none; None = no answer came."""
    parts = urlsplit(url)
    answer = asked(parts.hostname or "", parts.port or 80, "/healthz")
    return None if answer is None else str(answer.get("instance", ""))


def await_rest(endpoints: Endpoints, progress: Callable[[str], None]) -> list[tuple[str, str]]:
    """
    Wait, at most :data:`REST_S`, until what no request needs works too: somebody leads the queue of trainings, and each
    process serves its metrics. ``progress`` is called as by :func:`smore.local.machine.up`.

    Returns what does not work then: the process whose log may say why, and the fault in words.
    """
    deadline, said = time.monotonic() + REST_S, ""
    while True:
        unled, silent = not _led(endpoints), without_metrics(endpoints)
        waits_for = ["nobody leads the queue of trainings yet"] if unled else []
        if not (missing := "; ".join([*waits_for, *(f"no metrics of {name} yet" for name in silent)])):
            return []
        if missing != said:
            progress(missing)
            said = missing
        if time.monotonic() > deadline:
            break
        time.sleep(ASK_S)
    nobody = f"after {REST_S:g} s nobody leads the queue of trainings: no training starts until somebody does"
    return [*([("control", nobody)] if unled else []), *((name, unserved(name, why)) for name, why in silent.items())]


def _led(endpoints: Endpoints) -> bool:
    """Whether somebody leads the queue of trainings."""
    parts = urlsplit(endpoints.gateway_url)
    return bool((asked(parts.hostname or "", parts.port or 80, "/readyz") or {}).get("job_leader"))


def unserved(name: str, why: str) -> str:
    """A process that does not serve its metrics, in words."""
    return f"{name} serves no metrics: {why}"


def without_metrics(endpoints: Endpoints) -> dict[str, str]:
    """Processes of the platform that do not serve their metrics, and why, by name (:func:`smore.local.scrape.silent`)."""
    return scrape.silent(endpoints.metrics_host, endpoints.metrics_ports, endpoints.instance)
