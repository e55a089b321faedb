"""
structlog without rich.

Where rich is installed, structlog imports it and pygments to draw tracebacks on a terminal. The platform's processes write
plain lines, so each would spend 4 MiB and 30 ms on nothing. The command line (smore/cli/terminal.py) imports rich later
and gets it.
"""

import sys

_absent = "rich" not in sys.modules
if _absent:
    # None means to Python that the module cannot be imported; structlog then does without it.
    sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    if _absent:
        del sys.modules["rich"]

__all__ = ["structlog"]
