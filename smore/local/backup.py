"""
A copy of a running platform's folder, from which ``smore up`` starts the platform as it was.

Postgres has the catalog, the trainings and the history up to its cursor on the event stream; the append-only file has
what waits and runs, and the events from that cursor on. The copies fit together because the cursor stands still from
the one to the other: its row is locked, and the recorder passes a locked row over. So no event is missing, and none is
counted twice. Requests are served meanwhile.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from smore.local import embedded
from smore.messages.stream import VERSION

#: What a copy has from its own servers, and what belongs to running processes alone.
_LEFT_OUT: Final = ("postgres", "redis", "run", "logs")
#: Times that the append-only file is copied anew because Redis has begun another file meanwhile.
_ATTEMPTS: Final = 20
_POLL_S: Final = 0.05


class BackupFailed(Exception):
    """No backup was made; the message says why."""


def backup(home: Path, to: Path, redis_url: str, postgres_url: str) -> None:
    """
    Copy the platform that runs in ``home`` into the folder ``to``, which is made. What was accepted before the call is in
    the copy.

    Raises BackupFailed, and leaves no folder ``to``: where ``to`` exists or is in ``home``, where a server is not the platform's own, or
    where a copy fails.
    """
    import psycopg

    from smore.postgres.history.recorder import CURSOR, FIRST

    home = home.resolve()
    if not (home / "postgres").is_dir() or not (home / "redis" / "appendonlydir").is_dir():
        raise BackupFailed(f"{home} does not hold the data of its servers: copy them with their own tools")
    new = to.resolve().with_name(f".{to.name}.new")
    if to.exists() or new.is_relative_to(home):
        raise BackupFailed(f"{to} {'exists' if to.exists() else f'is in {home}'}: name a new folder elsewhere")
    new.mkdir(mode=0o700, parents=True)
    try:
        plain = postgres_url.replace("postgresql+psycopg://", "postgresql://", 1)
        with psycopg.connect(plain) as connection:
            # A row that a recorder is about to make could not be locked.
            connection.execute(FIRST, (CURSOR, VERSION))
            connection.commit()
            connection.execute("SELECT FROM stream_cursor FOR UPDATE")
            _copy_postgres(home, new / "postgres")
            _copy_redis(redis_url, home / "redis", new / "redis")
        try:
            shutil.copytree(home, new, symlinks=True, dirs_exist_ok=True, ignore=_left_out(home))
        except shutil.Error as error:
            # What is gone was removed meanwhile, such as an older checkpoint.
            if failed := [why for source, _, why in error.args[0] if os.path.lexists(source)]:
                raise BackupFailed(failed[0]) from error
        new.rename(to)
    except (OSError, psycopg.Error) as error:
        raise BackupFailed(str(error)) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _left_out(home: Path) -> Callable[[str, list[str]], list[str]]:
    return lambda folder, names: [name for name in names if Path(folder) == home and name in _LEFT_OUT]


def _copy_postgres(home: Path, to: Path) -> None:
    program = embedded.postgres_folder(home / "postgres") / "pg_basebackup"
    run = embedded.run_folder(home)
    copy = subprocess.run(
        [
            str(program),
            f"--pgdata={to}",
            f"--host={run}",
            f"--port={embedded.POSTGRES_PORT}",
            f"--username={embedded.DATABASE}",
            "--no-password",
            "--checkpoint=fast",
        ],
        env=os.environ | {"PGPASSWORD": embedded.secret(home / "postgres.password")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if copy.returncode != 0:
        raise BackupFailed(f"{program} failed: {copy.stderr.strip()}")


def _copy_redis(url: str, data: Path, to: Path) -> None:
    import redis

    with redis.Redis.from_url(url) as client:
        # Everything that was answered until now is in the file then; with appendfsync everysec a write may wait 2 s.
        while cast("dict[str, int]", client.info("persistence"))["aof_buffer_length"]:
            time.sleep(_POLL_S)
    folder = data / "appendonlydir"
    manifest = folder / "appendonly.aof.manifest"
    for _ in range(_ATTEMPTS):
        before = manifest.read_bytes()
        try:
            shutil.copytree(folder, to / folder.name)
        except (FileNotFoundError, shutil.Error):
            after = b""
        else:
            after = manifest.read_bytes()
        if after == before:
            return
        # A rewrite began or ended: the files are no longer those that the manifest names.
        shutil.rmtree(to)
        time.sleep(_POLL_S)
    raise BackupFailed(f"{folder} was written anew again and again")
