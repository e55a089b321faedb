"""
The id of an installation, by which ``smore up`` knows its own gateway from a stranger on the same port, and whoever reads
metrics the platform that they belong to.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path


def instance_id(home: Path) -> str:
    """
    The id in ``<home>/instance``, made at the first call: 12 hexadecimal digits. Processes that start together get the
    same one, whatever users they run as.

    Where the folder is missing or cannot be written the id is new with every process.
    """
    made, file = secrets.token_hex(6), home / "instance"
    try:
        if not file.exists():
            whole = home / f".instance-{made}"
            whole.write_text(made)
            # It is no secret: /healthz says it.
            whole.chmod(0o644)
            try:
                # Nobody reads a file that is not written yet, and the first one stays.
                with suppress(FileExistsError):
                    os.link(whole, file)
            finally:
                whole.unlink()
        return file.read_text().strip() or made
    except OSError:
        return made
