"""
Blobs that nobody needs any more: those that no revision names, once they are old enough not to belong to a deploy under
way.
"""

from smore.blobs.store import Blobs
from smore.postgres.catalog import Store
from smore.process.observability import logger

log = logger(__name__)


def sweep(blobs: Blobs, store: Store, *, now: float, grace_s: float) -> int:
    """Remove them, and uploads that were given up. Returns how many blobs were removed. ``now`` in epoch seconds."""
    blobs.drop_abandoned(now)
    # Listed before the names are read: what is deployed in between was asked for in between, and so is younger than the
    # grace.
    old = [blob for blob in blobs if now - blob.at > grace_s]
    if not old:
        return 0
    named = store.named_blobs()
    unnamed = [blob for blob in old if (blob.project, blob.digest) not in named]
    for blob in unnamed:
        blobs.remove(blob.project, blob.digest)
    if unnamed:
        log.info("blobs removed", count=len(unnamed), bytes=sum(blob.size for blob in unnamed))
    return len(unnamed)
