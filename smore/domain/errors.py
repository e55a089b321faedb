"""
Errors, in one tree with two roots by fault.

A caller sees a :class:`CallerError` as it is, and of a :class:`PlatformError` only the code. ``code`` is part of the API
and stable; the docstring of a class is its default message. ``api/errors.py`` maps codes to HTTP status codes.
"""

from typing import ClassVar, Self


class SmoreError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str | None = None, /, **details: object) -> None:
        #: Machine-readable facts for the answer: ``field``, ``limit``, ``earliest_deadline_ms``…
        self.details = details
        super().__init__(message or (type(self).__doc__ or self.code).strip())


class CallerError(SmoreError):
    """The request cannot be served as it is."""

    code = "bad_request"

    @classmethod
    def at(cls, field: str, problem: str, /, **details: object) -> Self:
        """The error of a ``field``, which the message names."""
        return cls(f"{field}: {problem}", field=field, **details)


class PlatformError(SmoreError):
    """The platform failed."""

    code = "internal"


class InvalidInput(CallerError):
    """The input does not fit the function."""

    code = "invalid_input"


class InvalidSpec(CallerError):
    """The description is not valid."""

    code = "invalid_spec"


class InvalidArtifact(CallerError):
    """The uploaded folder cannot be taken as it is."""

    code = "invalid_artifact"


class BlobNotFound(CallerError):
    """There is no such blob in this project."""

    code = "blob_not_found"


class WrongDigest(CallerError):
    """The bytes that came have another SHA-256 than they were announced under; upload them again from the start."""

    code = "wrong_digest"


class StorageFull(CallerError):
    """The project's blobs take up all the room that they may have."""

    code = "storage_full"


class PayloadTooLarge(CallerError):
    """The body is larger than allowed."""

    code = "payload_too_large"


class NotFound(CallerError):
    """There is no such thing here."""

    code = "not_found"


class FunctionNotFound(NotFound):
    """There is no such function in this project."""

    code = "function_not_found"


class InvocationNotFound(NotFound):
    """There is no such invocation in this project."""

    code = "invocation_not_found"


class Conflict(CallerError):
    """The request contradicts the present state."""

    code = "conflict"


class IdempotencyMismatch(CallerError):
    """This Idempotency-Key was used with another request."""

    code = "idempotency_mismatch"


class Unauthorised(CallerError):
    """A valid API key is required."""

    code = "unauthorised"


class Forbidden(CallerError):
    """This API key lacks the scope."""

    code = "forbidden"


class DeadlineExpired(CallerError):
    """The deadline has passed."""

    code = "deadline_expired"


class SloInfeasible(CallerError):
    """The deadline cannot be met."""

    code = "slo_infeasible"


class QueueFull(CallerError):
    """Too much is waiting already."""

    code = "queue_full"


class LimitReached(CallerError):
    """The project has used what it may."""

    code = "limit_reached"


class Draining(CallerError):
    """It is being drained: nothing new is taken."""

    code = "draining"


class Unavailable(PlatformError):
    """A part of the platform is away; try again."""

    code = "unavailable"


class Quarantined(CallerError):
    """All GPU instances keep the revision out after crashes: try again later, lift its quarantine, or deploy anew."""

    code = "quarantined"


class NoLeader(CallerError):
    """No scheduler leads, so nothing would be dispatched; try again."""

    code = "no_leader"


class WritesRefused(Unavailable):
    """The platform cannot store anything now; try again."""

    code = "writes_refused"
