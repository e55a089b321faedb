"""``python -m lab.bench.compose``: see :mod:`lab.bench.compose.run`."""

from lab.bench.compose.run import main

main()
