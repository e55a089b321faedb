"""Ids of invocations, functions' revisions, jobs and questions."""

import os
import time


def new_id() -> str:
    """32 hex digits: 48 bits of milliseconds since the epoch, then 80 random bits. Ids sort by time."""
    return f"{int(time.time() * 1000):012x}{os.urandom(10).hex()}"


def made_at(id_: str) -> float:
    """When an id was made, epoch seconds."""
    return int(id_[:12], 16) / 1000
