"""Floating-point errors pass silently while operations run on NumPy: NaN and inf say enough.

`token = quiet()`, then `loud(token)`, is `with numpy.errstate(all="ignore")` at a tenth of its
cost, which is more than a small operation's.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

try:
    from numpy._core import umath

    state, silent = umath._extobj_contextvar, umath._make_extobj(all="ignore")
    # No function of Python, whose call would be half of the cost.
    quiet: Any = partial(state.set, silent)
    loud: Any = state.reset

except (ImportError, AttributeError):  # another NumPy: by its public way

    def quiet() -> Any:
        """Begin to ignore floating-point errors; what it returns is for `loud`."""
        state = np.errstate(all="ignore")
        state.__enter__()
        return state

    def loud(token: Any) -> None:
        """End what `quiet` began."""
        token.__exit__(None, None, None)
