"""How far results of floating-point arithmetic may lie from those of the same arithmetic in another order."""

import math
from collections.abc import Iterable

import numpy as np

#: Of two results, each with its own errors, through layers that amplify a little.
MARGIN = 8.0


def rounding(dtype: type[np.floating], sums: Iterable[int]) -> float:
    """
    The bound, relative to the largest magnitude of the result, where ``sums`` are the numbers of terms of the sums that
    follow each other.

    Which instructions, how many threads and how many rows there are decides the order in which a library adds. The
    error of a sum of n terms then grows with sqrt(n) roundings (Higham and Mary 2019, doi:10.1137/18M1226312), and
    those of consecutive sums add. It says nothing of a single small element: terms that cancel leave it with the errors
    of the large ones.
    """
    return MARGIN * float(np.finfo(dtype).eps) * sum(map(math.sqrt, sums))
