"""The class that a function's entrypoint names, in its runner."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from smore.handler import Handler

#: Names that an error lists.
_MOST_NAMES: Final = 10


class BadEntrypoint(Exception):
    """The entrypoint names no handler. The message names the field and what there is."""


def handler_class(entrypoint: str, folder: str) -> type[Handler]:
    """
    Import the class. ``folder``: the uploaded one, "" = none. Raises BadEntrypoint, and what the module's own code
    raises.
    """
    module, _, name = entrypoint.partition(":")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # The module exists where it is another one, which it imports, that is missing.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise BadEntrypoint(f"spec.entrypoint: there is no module {module}; {_modules(folder)}") from error
    kind = getattr(imported, name, None)
    if isinstance(kind, type) and issubclass(kind, Handler):
        return kind
    wrong = f"{name} is no subclass of smore.Handler" if hasattr(imported, name) else f"there is no class {name}"
    raise BadEntrypoint(f"spec.entrypoint: {wrong} in the module {module}; {_classes(imported)}")


def _modules(folder: str) -> str:
    if not folder:
        return "no folder was uploaded, so only modules of the platform can be named"
    found = sorted(
        path.stem for path in Path(folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    )
    return f"the folder has {_listed(found)}" if found else "the folder has no module"


def _classes(module: ModuleType) -> str:
    classes = {name: kind for name, kind in vars(module).items() if isinstance(kind, type) and kind is not Handler}
    handlers = [name for name, kind in classes.items() if issubclass(kind, Handler)]
    if handlers:
        return f"its subclasses of smore.Handler are {_listed(handlers)}"
    own = [name for name, kind in classes.items() if kind.__module__ == module.__name__]
    return f"its classes are {_listed(own)}, none a subclass of smore.Handler" if own else "it has no class of its own"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
