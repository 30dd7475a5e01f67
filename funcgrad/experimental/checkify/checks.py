"""`check` and its relatives: one op, which raises where `checkify` doesn't take its place."""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.core import source
from funcgrad.core.array import raw
from funcgrad.core.primitive import NoRule, Primitive
from funcgrad.core.trace import aval_of
from funcgrad.errors import ArgumentError
from funcgrad.experimental.checkify.errors import Error, FailedCheckError, Site
from funcgrad.ops.base import batch_front
from funcgrad.transforms.arguments import is_arraylike

INT32 = np.dtype(np.int32)


def check(pred: Any, msg: str, *fmt_args: Any, debug: bool = False, **fmt_kwargs: Any) -> None:
    """Say that `pred` must hold: within `checkify`, the `Error` says so where it doesn't.

    Elsewhere it raises where it doesn't hold, also inside `jit`, where programs otherwise wait for
    their values.

    pred: a bool, or a bool scalar array
    msg: what to say; a format string for fmt_args and fmt_kwargs, which are pytrees of arrays
    debug: as `debug_check`

    >>> from funcgrad.experimental import checkify
    >>> def f(x):
    ...     checkify.check(x > 0, "x must be positive, not {x}", x=x)
    ...     return fnp.sqrt(x)
    >>> err, out = fg.jit(checkify.checkify(f))(fnp.array(-1.0))
    >>> print(err.get())
    x must be positive, not -1.0 (`check` failed)...
    """
    name = "debug_check" if debug else "check"
    scalar = isinstance(pred, bool) or (hasattr(pred, "dtype") and np.shape(pred) == ())
    if not scalar or aval_of(pred).dtype != np.bool_:
        raise ArgumentError(f"{name} takes a scalar pred as argument, got {pred}: need a bool")
    leaves, structure = tree.flatten((fmt_args, fmt_kwargs))
    for x in leaves:
        if not is_arraylike(x):
            raise ArgumentError(
                f"Formatting arguments to checkify.{name} need to be pytrees of arrays, got {x!r} "
                f"of type {type(x).__name__}"
            )
    site = Site(FailedCheckError, f"{msg} (`check` failed)", structure, user_place())
    code = fnp.where(pred, INT32.type(-1), INT32.type(0))
    check_p.bind(code, *leaves, sites=(site,), debug=debug)


def debug_check(pred: Any, msg: str, *fmt_args: Any, **fmt_kwargs: Any) -> None:
    """`check` that does nothing but within `checkify`.

    >>> from funcgrad.experimental import checkify
    >>> checkify.debug_check(fnp.array(False), "never seen")
    """
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)


def check_error(error: Error) -> None:
    """Raise what failed, or pass it on to the `checkify` around: the inverse of `checkify`.

    >>> from funcgrad.experimental import checkify
    >>> err, _ = checkify.checkify(fnp.log, errors=checkify.nan_checks)(1.0)
    >>> checkify.check_error(err)
    """
    if not isinstance(error, Error):
        raise ArgumentError(
            f"check_error takes an Error as argument, got type {type(error).__name__} instead"
        )
    if error.sites:
        code, payload = reduced(error.code, error.payload)
        check_p.bind(code, *payload, sites=error.sites, debug=False)


def user_place() -> str:
    """The user's line, as the end of a message."""
    place = source.current()
    return "" if place is None else f" at {place}"


def reduced(code: Any, payload: Any) -> tuple[Any, list]:
    """An error of all lanes as one: that of the first lane that failed."""
    lanes = np.ndim(code)
    code, payload = fnp.ravel(code), [fnp.asarray(x) for x in payload]
    first = fnp.argmax(code >= 0)
    flat = [fnp.reshape(x, (-1, *x.shape[lanes:])) for x in payload]
    return code[first], [x[first] for x in flat]


def _impl(xp: Any, code: Any, *payload: Any, sites: tuple[Site, ...], debug: bool) -> list:
    if not debug:
        Error(raw(code), tuple(map(raw, payload)), sites).throw()
    return []


def _batch(axis: Any, args: Any, dims: Any, **params: Any) -> tuple[list, list]:
    code, *payload = (batch_front(x, d, axis.size) for x, d in zip(args, dims, strict=True))
    code, payload = reduced(code, payload)
    return check_p.bind(code, *payload, **params), []


check_p: Primitive = Primitive(
    name="check",
    abstract=lambda code, *payload, sites, debug: [],
    impl=_impl,
    jvp=lambda primals, tangents, **params: (check_p.bind(*primals, **params), []),
    transpose=NoRule("a check gives nothing"),
    batch=_batch,
    dims=NoRule("a check is of whole values"),
    multiple=True,
    effect=True,
)
