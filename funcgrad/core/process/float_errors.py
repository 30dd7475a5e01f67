"""Floating-point errors pass silently while operations run on NumPy: NaN and inf say enough.

`before = errors()`, then `quiet()` in a `try` and `loud(before)` in its `finally`, is
`with numpy.errstate(all="ignore")` at a tenth of its cost, which is more than a small operation's.
An interrupt may come after each of these calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

try:
    from numpy._core import umath

    state, silent = umath._extobj_contextvar, umath._make_extobj(all="ignore")
    # No function of Python, whose call would be half of the cost.
    errors: Any = state.get
    quiet: Any = partial(state.set, silent)
    loud: Any = state.set

except (ImportError, AttributeError):  # another NumPy: by its public way

    def errors() -> Mapping:
        """What is done about floating-point errors now; for `loud`."""
        return np.geterr()

    def quiet() -> None:
        """Begin to ignore floating-point errors."""
        np.seterr(all="ignore")

    def loud(before: Mapping) -> None:
        """Do again what `errors` said."""
        np.seterr(**before)
