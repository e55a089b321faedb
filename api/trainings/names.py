"""
What the caller of a request reads of other trainings in the job scheduler's words: their names, where the key may read
them, and else that they are of another project. The job scheduler itself names those of other projects by their ids.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from api.auth import is_operator
from api.deps import Gateway
from smore.redis.catalog import KeyEntry

#: What a training is called that the caller may not read.
ANOTHER: Final = "a training of another project"
_ID: Final = re.compile(r"\b[0-9a-f]{32}\b")

#: Words with ids of jobs → the same words with names.
Say = Callable[[str], str]


def saying(gateway: Gateway, caller: KeyEntry, texts: Iterable[str]) -> Say:
    """What puts names into these texts. It asks Postgres where there are ids in them."""
    ids = {id_ for text in texts for id_ in _ID.findall(text)}
    names = gateway.store().jobs.names(ids, None if is_operator(caller) else caller.project) if ids else {}
    return lambda text: _ID.sub(lambda match: names.get(match[0], ANOTHER), text)
