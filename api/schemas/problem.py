"""How every error is answered."""

from pydantic import BaseModel, ConfigDict


class Problem(BaseModel):
    """RFC 9457; ``code`` is stable."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
