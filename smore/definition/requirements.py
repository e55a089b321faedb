"""
Which requirements a function may name: those that pip reads as a package name with versions. Others are refused before
they reach a worker.
"""

from collections.abc import Iterable
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from smore.domain.errors import InvalidSpec
from smore.domain.quote import quoted

_FIELD: Final = "spec.requirements"


def check_requirements(requirements: Iterable[str]) -> None:
    """
    Check requirements, already parsed by :func:`smore.domain.artifact.parse_requirements`, as pip reads them.

    Raises InvalidSpec that names the first requirement that is a path, a URL, or has an option or a comment.
    """
    for text in requirements:
        if text.startswith("./"):
            continue  # a wheel in the function's folder
        try:
            url = Requirement(text).url
        except InvalidRequirement as error:
            raise InvalidSpec.at(
                _FIELD,
                f"{quoted(text)} is not a requirement such as einops==0.8.1: "
                "a name with extras, versions and a marker is expected, no path and no option of pip",
            ) from error
        if url is not None:
            raise InvalidSpec.at(
                _FIELD,
                f"{quoted(text)} names a URL: "
                "only packages of the index and wheels of the folder (./name-1.0-py3-none-any.whl) are installed",
            )
