"""Reads a function.yaml. It imports PyYAML, which the extra ``deploy`` installs: import it where YAML is read."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from smore_client.pack import FUNCTION_FILE, Packed, pack


def read_function_file(path: str | Path) -> dict[str, Any]:
    """
    A function.yaml, or the one in a folder, as plain values.

    What the platform refuses in YAML is refused here: anchors and aliases, a key that comes twice, a number that is not
    finite. Raises OSError, and ValueError that names the file.
    """
    file = Path(path)
    in_folder = file.is_dir()
    if in_folder:
        file /= FUNCTION_FILE
    try:
        document = yaml.load(file.read_text(), Loader=_Loader)  # noqa: S506 - it is a SafeLoader
    except FileNotFoundError as error:
        missing = f"the folder has no {FUNCTION_FILE}" if in_folder else "no such file or folder"
        raise FileNotFoundError(f"{path}: {missing}; a {FUNCTION_FILE} or a folder with one is expected") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{file}: a mapping is expected")
    return document


def read_source(source: str | Path, into: Path) -> tuple[dict[str, Any], Packed | None]:
    """
    What deploying a function.yaml, or a folder that holds one, sends: its document, and what is uploaded before it, None
    = nothing. The zip of a folder is written into the folder ``into``. Raises OSError, and ValueError that names what
    the platform would refuse.
    """
    document, folder = read_function_file(source), Path(source)
    if not folder.is_dir():
        return document, None
    spec = document.get("spec")
    if not isinstance(spec, dict):
        raise ValueError(f"{folder}: spec: a mapping is expected")
    packed = pack(folder, into)
    if packed is None:
        return document, None
    spec = {**spec, "artifact": {"code": packed.code, "files": dict(packed.files)}}
    if "requirements" in spec:
        spec["requirements"] = _requirements(folder, spec["requirements"])
    return {**document, "spec": spec}, packed


def _requirements(folder: Path, given: object) -> object:
    """
    ``requirements`` as the platform takes them: the lines of a file where its name is given, else what is given. Raises
    OSError.
    """
    if not isinstance(given, str):
        return given
    try:
        return list(_lines((folder / given).read_text()))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise FileNotFoundError(
            f"{folder}: spec.requirements: the folder has no file {given!r}; a list, or the name of a file of the folder, is"
            " expected"
        ) from error


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield stripped.partition(" #")[0].strip()


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _refused("anchors and aliases are not taken", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in keys:
                    raise _refused("a key comes twice", key.start_mark)
                keys.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def finite(self, node: yaml.ScalarNode) -> float:
        number: float = self.construct_yaml_float(node)
        if not math.isfinite(number):
            raise _refused("a finite number is expected", node.start_mark)
        return number


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.finite)


def _refused(problem: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)
