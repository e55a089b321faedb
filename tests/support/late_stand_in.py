"""A module whose import waits until the process ``one`` (tests/support/stand_in.py) runs."""

import os
from pathlib import Path

from tests.support.eventually import eventually

eventually(
    Path(os.environ["SMORE_HOME"], "one.json").exists, what="the process runs that needs the module before this one"
)
