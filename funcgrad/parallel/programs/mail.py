"""`mail`: a message from one rank to another that waits until it is asked for.

Among ranks of a job it takes the place of a permutation in which all take part at once: a rank
sends when it has something, gets when it needs something, and otherwise goes on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad.core.aval import ShapedArray, Zero
from funcgrad.core.dims import letters
from funcgrad.core.ir import Jaxpr, sub_jaxprs
from funcgrad.core.primitive import Primitive
from funcgrad.ops.collective.blocks import communicator
from funcgrad.parallel.communicators.mail import Route, passed


def _impl(xp: Any, x: Any, words: Any, *, axis_name: tuple, route: Route) -> Any:
    to, source = map(int, words)
    return passed(communicator("mail", axis_name), route, np.asarray(x), to, source)


def _jvp(primals: Any, tangents: Any, *, axis_name: tuple, route: Route) -> tuple:
    (x, words), dx = primals, tangents[0]
    if isinstance(dx, Zero):
        return mail_p.bind(x, words, axis_name=axis_name, route=route), dx
    # Both go the same way, one after the other.
    both = {"axis_name": axis_name, "route": route._replace(capacity=2 * route.capacity)}
    return mail_p.bind(x, words, **both), mail_p.bind(dx, words, **both)


def _transpose(ct: Any, x: Any, words: Any, *, axis_name: tuple, route: Route) -> list:
    """What was sent comes back: ticks run backwards, so that the order is the same."""
    pairs = tuple((b, a) for a, b in route.pairs)
    back = route._replace(pairs=pairs)
    return [mail_p.bind(ct, fnp.flip(words), axis_name=axis_name, route=back), None]


def _batch(axis: Any, args: Any, dims: Any, *, axis_name: tuple, route: Route) -> tuple:
    (x, words), (d, d_words) = args, dims
    if axis.name in axis_name or d_words is not None:
        raise NotImplementedError("mail is between ranks, whose numbers are the same in all lanes")
    return mail_p.bind(x, words, axis_name=axis_name, route=route), d


def _dims(x: ShapedArray, words: ShapedArray, **params: Any) -> str:
    names = " ".join(letters(x.ndim))
    return f"{names}, . -> {names}"


# x, and int32 (2,): whom it is sent to, and from whom something is got, or -1 → what is got.
mail_p: Primitive = Primitive(
    name="mail",
    abstract=lambda x, words, *, axis_name, route: x,
    impl=_impl,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
    dims=_dims,
    collective="permute",
    doc="Internal.",
)


def sends_mail(jaxpr: Jaxpr) -> bool:
    """Whether a program, or one in it, has messages."""
    return any(eqn.prim is mail_p or any(map(sends_mail, sub_jaxprs(eqn))) for eqn in jaxpr.eqns)
