"""``python -m lab.bench.overload``: see :mod:`lab.bench.overload.run`."""

from lab.bench.overload.run import main

main()
