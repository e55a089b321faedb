"""Where the packages of the platform's processes lie."""

from pathlib import Path
from typing import Final

_SMORE: Final = Path(__file__).resolve().parents[1]
#: The folder that ``api``, ``scheduler``, ``worker``… are imported from: the checkout or image, or the folder in the
#: package that setup.py puts them into, so that an installation has no top-level package ``api``.
ROOT: Final = next(folder for folder in (_SMORE / "_tree", _SMORE.parent) if folder.is_dir())
