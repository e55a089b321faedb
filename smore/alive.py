"""
``python -m smore.alive NAME``: the healthcheck of one process of the platform on this machine. Exit code 0 or 1.

- ``gateway``: its ``/readyz`` answers 200, so a scheduler leads and a GPU instance has reported;
- ``node``: each of its GPU instances has a report in Redis, which expires after two seconds;
- ``trainings``: the keeper of trainings accepts connections (worker/keeper.py);
- every other name (``scheduler-0``, ``control``…) is a Celery process: it is connected to Redis and has sent
  a command within :data:`SILENT_S`. A scheduler is healthy only where one of the schedulers leads.

This module uses the standard library alone and reads its settings from the environment by name: it is started every few
seconds, and importing a Redis client would take ten times as long as the check.
"""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import parse_qs, unquote, urlsplit

#: Seconds within which a Celery process sends a command to Redis: a worker does so once a second.
SILENT_S: Final = 15
_PATIENCE_S: Final = 3
#: Bytes of an answer; the list of Redis' clients has about 300 for each client.
_MOST: Final = 16 << 20


class Refused(Exception):
    """Redis answered with an error, or closed the connection."""


def alive(name: str, environment: Mapping[str, str]) -> str:
    """What is wrong with the process, "" = nothing. Raises OSError and Refused, whose texts say what is wrong."""
    if name == "gateway":
        return _gateway(
            environment.get("SMORE_API__HOST", "127.0.0.1"), int(environment.get("SMORE_API__PORT", "8400"))
        )
    run = Path(environment.get("SMORE_HOME", ".smore")) / "run"
    if name == "trainings":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as keeper:
            keeper.connect(str(run / "trainings.sock"))
        return ""
    url, prefix = environment.get("SMORE_REDIS__URL"), environment.get("SMORE_REDIS__PREFIX", "smore:")
    if url is None:
        return "SMORE_REDIS__URL is not set"
    return _node(url, prefix, names_file(run)) if name == "node" else _celery(url, prefix, name)


def names_file(run: Path) -> Path:
    """The file to which this machine's node writes the names of its GPU instances, one a line."""
    return run / f"node-{socket.gethostname()}.gpus"


def _gateway(host: str, port: int) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - an address to replace
    with socket.create_connection((host, port), _PATIENCE_S) as connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with connection.makefile("rb") as answer:
            status = answer.readline(100).split(b" ", 2)
            return "" if status[1:2] == [b"200"] else b" ".join([*status, answer.read(4096)]).decode(errors="replace")


def _celery(url: str, prefix: str, name: str) -> str:
    leader, clients = _ask(url, ("EXISTS", f"{prefix}leader"), ("CLIENT", "LIST"))
    wanted = f"smore-{name}:{socket.gethostname()}:"
    described = [dict(word.partition("=")[::2] for word in line.split(" ")) for line in clients.splitlines()]
    idle = [int(client["idle"]) for client in described if client.get("name", "").startswith(wanted)]
    if not idle:
        return f"{name} of this machine is not connected to Redis"
    if min(idle) > SILENT_S:
        return f"{name} has been silent for {min(idle)} s"
    return "no scheduler leads" if name.startswith("scheduler") and leader == "0" else ""


def _node(url: str, prefix: str, names: Path) -> str:
    try:
        wanted = names.read_text().split()
    except FileNotFoundError:
        return "no node has started here"
    answers = _ask(url, *(("EXISTS", f"{prefix}gpu:{gpu}") for gpu in wanted))
    missing = [gpu for gpu, exists in zip(wanted, answers, strict=True) if exists == "0"]
    return f"no report of {', '.join(missing)}" if missing else ""


def _ask(url: str, *commands: tuple[str, ...]) -> list[str]:
    """
    The answers of Redis, one a command, integers as text.

    ``url``: as redis-py takes it, with the options that name a user or a certificate. Raises OSError and Refused.
    """
    parts, options = urlsplit(url), {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    with _connect(
        parts.scheme, unquote(parts.path), parts.hostname or "localhost", parts.port or 6379, options
    ) as connection:
        user = options.get("username") or unquote(parts.username or "")
        password = options.get("password") or unquote(parts.password or "")
        login = [("AUTH", *([user] if user else []), password)] if password else []
        words = [*login, *commands]
        connection.sendall(b"".join(_packed(command) for command in words))
        with connection.makefile("rb") as answers:
            return [_read(answers) for _ in words][len(login) :]


def _connect(scheme: str, path: str, host: str, port: int, options: Mapping[str, str]) -> socket.socket:
    if scheme == "unix":
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.settimeout(_PATIENCE_S)
        local.connect(path)
        return local
    connection = socket.create_connection((host, port), _PATIENCE_S)
    if scheme != "rediss":
        return connection
    import ssl

    context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif options.get("ssl_check_hostname", "").lower() in ("false", "no", "0"):
        context.check_hostname = False
    return context.wrap_socket(connection, server_hostname=host)


def _packed(command: tuple[str, ...]) -> bytes:
    words = [word.encode() for word in command]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _read(answers: BinaryIO) -> str:
    """A simple string, an integer or a bulk string of Redis' protocol, as text. Raises Refused for an error."""
    line = answers.readline(4096)
    kind, rest = line[:1], line[1:].strip().decode(errors="replace")
    if kind == b"$":
        return answers.read(min(int(rest), _MOST) + 2)[:-2].decode(errors="replace")
    if kind in (b"+", b":"):
        return rest
    raise Refused(rest or "Redis has closed the connection")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m smore.alive gateway|node|trainings|control|scheduler-0|…")
    try:
        wrong = alive(sys.argv[1], os.environ)
    except (Refused, OSError) as error:
        wrong = str(error)
    if wrong:
        sys.exit(wrong)


if __name__ == "__main__":
    main()
