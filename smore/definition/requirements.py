"""
What a function may require: what pip would read as anything but a name and versions is refused before it comes to any
worker.
"""

from collections.abc import Iterable

from packaging.requirements import InvalidRequirement, Requirement

from smore.domain.errors import InvalidSpec
from smore.domain.quote import quoted


def check_requirements(requirements: Iterable[str], where: str = "spec.requirements") -> None:
    """
    Of what :func:`smore.domain.artifact.parse_requirements` has let through, whether pip would read it as names with
    versions alone.

    Raises InvalidSpec that names the first that is a path, a URL, or has an option or a comment behind it.
    """
    for text in requirements:
        if text.startswith("./"):
            continue  # a wheel of the folder
        try:
            url = Requirement(text).url
        except InvalidRequirement as error:
            raise InvalidSpec(
                f"{where}: {quoted(text)} is not a requirement such as einops==0.8.1: "
                "a name with extras, versions and a marker is expected, no path and no option of pip",
                field=where,
            ) from error
        if url is not None:
            raise InvalidSpec(
                f"{where}: {quoted(text)} names a URL: "
                "only packages of the index and wheels of the folder (./name-1.0-py3-none-any.whl) are installed",
                field=where,
            )
