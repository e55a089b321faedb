"""Where a part of a JSON value stands: ``steps[0].gpu``, and what pydantic calls that place."""

from collections.abc import Sequence


def from_loc(loc: Sequence[str | int], kind: str, value: object) -> list[str | int]:
    """
    Names of fields and positions in lists, of an error of pydantic (its ``loc`` and ``type``) about ``value``. Of a union
    pydantic names the alternative too, which the caller has not written.
    """
    path: list[str | int] = []
    for position, part in enumerate(loc):
        match value, part:
            case dict(), _ if part in value:
                value = value[part]
            case list(), int() if part < len(value):
                value = value[part]
            case _ if kind != "missing" or position < len(loc) - 1:
                continue
        path.append(part)
    return path


def written(path: Sequence[str | int]) -> str:
    """``steps[0].gpu``; "" = the value itself."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
