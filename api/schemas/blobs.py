"""Uploaded files."""

from pydantic import BaseModel


class BlobState(BaseModel):
    """``offset``: bytes that have arrived; ``complete``: these are all of them, and their SHA-256 is ``digest``."""

    digest: str
    complete: bool
    offset: int
