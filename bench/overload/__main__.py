"""``python -m bench.overload``: see :mod:`bench.overload.run`."""

from bench.overload.run import main

main()
