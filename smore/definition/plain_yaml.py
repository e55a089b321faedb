"""
Reading of untrusted YAML documents such as function.yaml: plain values, within bounds.

Anchors and aliases are refused: a few hundred bytes of them can expand to millions of values. This module imports
PyYAML, so import it only where YAML is read.
"""

import math
from typing import Any, Final

import yaml

#: Values of one document, keys included, and their depth. A function with 1,000 uploaded files has about 2,100 values.
MOST_NODES: Final = 10_000
MOST_DEPTH: Final = 50
#: Characters of a number.
MOST_DIGITS: Final = 40


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self.nodes = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _refused("anchors and aliases are not taken", event.start_mark)
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise _refused(f"there are more than {MOST_NODES} values", event.start_mark)
        if self._depth == MOST_DEPTH:
            raise _refused(f"values lie more than {MOST_DEPTH} levels deep", event.start_mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in keys:
                    raise _refused("a key comes twice", key.start_mark)
                keys.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def number(self, node: yaml.ScalarNode) -> float:
        """An int or a finite float."""
        if len(node.value) > MOST_DIGITS:
            raise _refused(f"a number has more than {MOST_DIGITS} characters", node.start_mark)
        value: float = self.construct_yaml_int(node) if node.tag.endswith(":int") else self.construct_yaml_float(node)
        if not math.isfinite(value):
            raise _refused("a finite number is expected", node.start_mark)
        return value


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _Loader.number)


def _refused(problem: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)


def read_yaml(text: str | bytes) -> Any:
    """The value of the only document in ``text``. Raises ValueError with the line of the problem."""
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
