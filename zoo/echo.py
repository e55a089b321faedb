"""The smallest JSON function: it answers what it was sent. What it costs is what the platform costs."""

from typing import Any, ClassVar

from smore.handler import Handler


class Function(Handler):
    """Echo."""

    example: ClassVar = {"x": [1, 2, 3, 4, 5, 6, 7, 8], "id": "abc"}

    def predict(self, inputs: list[Any]) -> list[Any]:
        return inputs
