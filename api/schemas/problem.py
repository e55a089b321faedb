"""How every error is answered."""

from pydantic import BaseModel, ConfigDict


class Problem(BaseModel):
    """
    RFC 9457; ``code`` is stable. ``traceback``: where a handler raised an error, the frames of the handler's own code
    as Python prints them.
    """

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    traceback: str = ""
