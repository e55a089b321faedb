"""The id of an installation, by which ``smore up`` knows its own gateway from a stranger on the same port."""

import os
import secrets
from pathlib import Path


def instance_id(home: Path) -> str:
    """
    The id in ``<home>/instance``, made at the first call: 12 hexadecimal digits.

    Where the folder is missing or cannot be written the id is new with every process.
    """
    made, file = secrets.token_hex(6), home / "instance"
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            new.write(made)
    except FileExistsError:
        return file.read_text().strip() or made
    except OSError:
        pass
    return made
