"""``python -m bench.compose``: see :mod:`bench.compose.run`."""

from bench.compose.run import main

main()
