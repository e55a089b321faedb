"""
structlog as the platform's processes need it: without rich.

structlog imports rich, with pygments behind it, wherever it finds it, to draw tracebacks on a terminal. The processes
write lines: nothing of it would be used, and it is 4 MiB and 30 ms in every one of them. Who draws
(smore/cli/terminal.py) imports rich later and gets it.
"""

import sys

_absent = "rich" not in sys.modules
if _absent:
    # What Python finds here it takes for a module that cannot be imported; structlog goes without.
    sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    if _absent:
        del sys.modules["rich"]

__all__ = ["structlog"]
