"""Checks of values that are found at run time, as values: `checkify`.

`checkify(f)` gives a function that returns an `Error` beside f's result, in place of raising within
compiled code. It is a transform from program to program: what may fail is an integer that goes
along, which says what failed first, with the numbers that its message shows.

- `errors`: what may fail, and `Error`
- `checks`: `check` and its relatives, as an op
- `automatic`: what other ops may do wrong: NaN, division by zero, indices out of bounds
- `programs`: programs with checks as programs that say what failed
"""

from funcgrad.experimental.checkify.checks import check, check_error, debug_check
from funcgrad.experimental.checkify.errors import (
    DivisionByZeroError,
    Error,
    FailedCheckError,
    JaxRuntimeError,
    NaNError,
    OOBError,
    all_checks,
    automatic_checks,
    div_checks,
    float_checks,
    index_checks,
    init_error,
    nan_checks,
    user_checks,
)
from funcgrad.experimental.checkify.programs import checkify

__all__ = [
    "DivisionByZeroError",
    "Error",
    "FailedCheckError",
    "JaxRuntimeError",
    "NaNError",
    "OOBError",
    "all_checks",
    "automatic_checks",
    "check",
    "check_error",
    "checkify",
    "debug_check",
    "div_checks",
    "float_checks",
    "index_checks",
    "init_error",
    "nan_checks",
    "user_checks",
]
