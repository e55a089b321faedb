"""Uploaded files."""

from api.schemas.fields import Schema


class BlobState(Schema):
    """How far the upload of a blob has come."""

    digest: str
    """The SHA-256 of the whole blob, lower-case hex"""
    complete: bool
    """Whether all bytes have arrived and their SHA-256 is ``digest``"""
    offset: int
    """Bytes that have arrived, where the next part begins"""
