"""What HIPS autograd's tests use of autograd, of our functions: gradients in float64 of functions
of numbers, arrays and containers, with autograd's names and arguments.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.stats
from autograd_extend import (
    VJPS,
    Primitive,
    convolve,
    defvjp,
    of_lists,
    quick_grad_check,
    vspace,
    where,
)

import funcgrad as fg
import funcgrad.numpy as fnp
import funcgrad.scipy.stats as fg_stats
from funcgrad.core.array import Array
from funcgrad.core.trace import Tracer
from funcgrad.experimental.ode import odeint
from funcgrad.flatten_util import ravel_pytree
from funcgrad.test_util import check_grads as check_all

fg.default_dtype("float64")
TOLERANCE = 2e-6
STEP = 5e-7  # autograd's: its tests draw arguments that lie closer to a kink than ours may


def _selected(fun: Callable, argnum: Any, args: tuple, kwargs: dict) -> tuple[Callable, tuple]:
    """A function of the selected arguments alone, and these."""
    places = argnum if isinstance(argnum, tuple | list) else (argnum,)

    def of_them(*chosen: Any) -> Any:
        whole = list(args)
        for i, x in zip(places, chosen, strict=True):
            whole[i] = x
        return fun(*whole, **kwargs)

    return of_them, tuple(_inexact(args[i]) for i in places)


def _inexact(x: Any) -> Any:
    return fg.tree.map(lambda v: float(v) if isinstance(v, int) else v, x)


def _operator(make: Callable[[Callable, Any], Any]) -> Callable:
    """An operator on functions of one argument, as autograd
    gives it: `operator(fun, argnum)(*args)`; several arguments count as a tuple."""

    def operator(fun: Callable, argnum: Any = 0, *more: Any, **options: Any) -> Callable:
        @functools.wraps(fun)
        def applied(*args: Any, **kwargs: Any) -> Any:
            of_them, chosen = _selected(fun, argnum, args, kwargs)
            if isinstance(argnum, tuple | list):
                return make(lambda xs: of_them(*xs), chosen, *more, **options)
            return make(of_them, chosen[0], *more, **options)

        return applied

    return operator


def _ones(y: Any) -> Any:
    return fg.tree.map(fnp.ones_like, y)


def make_vjp(fun: Callable, x: Any) -> tuple[Callable, Any]:
    y, back = fg.vjp(fun, x)
    if not fnp.issubdtype(fnp.result_type(*fg.tree.leaves(y)), np.inexact):  # of a comparison
        return lambda v: fg.tree.map(fnp.zeros_like, x), y
    return lambda v: back(fg.tree.map(lambda g, p: fnp.asarray(g, fnp.result_type(p)), v, y))[0], y


def make_jvp(fun: Callable, x: Any) -> Callable:
    return lambda v: fg.jvp(fun, (x,), (fg.tree.map(fnp.asarray, v),))


def _grad(fun: Callable, x: Any) -> Any:
    back, y = make_vjp(fun, x)
    if np.size(y) != 1 or fnp.result_type(y).kind in "bc":
        raise TypeError("Grad only applies to real scalar-output functions.")
    return back(_ones(y))


def _value_and_grad(fun: Callable, x: Any) -> tuple[Any, Any]:
    back, y = make_vjp(fun, x)
    if np.size(y) != 1:
        raise TypeError("value_and_grad only applies to real scalar-output functions.")
    return y, back(_ones(y))


def _elementwise(fun: Callable, x: Any) -> Any:
    back, y = make_vjp(fun, x)
    return back(_ones(y))


def _grad_and_aux(fun: Callable, x: Any) -> tuple[Any, Any]:
    _, back, aux = fg.vjp(fun, x, has_aux=True)
    return back(1.0)[0], aux


def _jacobian(fun: Callable, x: Any) -> Any:
    return fg.jacrev(fun)(x)


def hessian_tensor_product(fun: Callable, argnum: int = 0) -> Callable:
    def product(*args: Any, **kwargs: Any) -> Any:
        *rest, tensor = args
        return fnp.tensordot(grad(fun, argnum)(*rest, **kwargs), tensor, np.ndim(tensor))

    return grad(product, argnum)


def tensor_jacobian_product(fun: Callable, argnum: int = 0) -> Callable:
    def product(*args: Any, **kwargs: Any) -> Any:
        *rest, tensor = args
        return fnp.tensordot(tensor, fun(*rest, **kwargs), np.ndim(tensor))

    return jacobian(product, argnum)


def _hvp(fun: Callable, x: Any) -> tuple[Callable, Any]:
    return make_vjp(grad(fun), x)


def make_ggnvp(f: Callable, g: Callable | None = None, f_argnum: int = 0) -> Callable:
    g = g or (lambda x: 1.0 / 2 * fnp.sum(x**2, axis=-1))

    def of_one(fun: Callable, x: Any) -> Callable:
        back, y = make_vjp(fun, x)
        hvp, _ = _hvp(g, y)
        return lambda v: back(hvp(make_jvp(fun, x)(v)[1]))

    return _operator(of_one)(f, f_argnum)


grad, value_and_grad, elementwise_grad, grad_and_aux, jacobian = map(
    _operator, (_grad, _value_and_grad, _elementwise, _grad_and_aux, _jacobian)
)


def grad_named(fun: Callable, argname: str) -> Callable:
    return grad(fun, list(inspect.signature(fun).parameters).index(argname))


def multigrad_dict(fun: Callable) -> Callable:
    names = list(inspect.signature(fun).parameters)

    def gradients(*args: Any, **kwargs: Any) -> dict:
        bound = inspect.signature(fun).bind(*args, **kwargs)
        bound.apply_defaults()
        values = {n: bound.arguments[n] for n in names}
        return collections.OrderedDict(
            (n, fg.grad(lambda x, n=n: fun(**{**values, n: x}))(_inexact(values[n]))) for n in names
        )

    return gradients


def check_grads(fun: Callable, argnum: Any = 0, modes: Any = None, order: int = 2) -> Callable:
    def check(*args: Any, **kwargs: Any) -> None:
        of_them, chosen = _selected(fun, argnum, args, kwargs)
        name = getattr(fun, "__name__", "function")
        for mode in modes or ("fwd", "rev"):
            words = "(JVP)" if mode == "fwd" else "(VJP)"
            try:
                check_all(of_them, chosen, order, (mode,), 1e-4, 1e-4, STEP)
            except AssertionError as e:
                first = _fails(of_them, chosen, mode)
                of = name if first else f"{words[1:-1].lower()}_{name}"
                raise AssertionError(f"Derivative {words} check of {of} failed: {e}") from None

    return check


def _fails(fun: Callable, args: tuple, mode: str) -> bool:
    """Whether the first derivatives are wrong."""
    try:
        check_all(fun, args, 1, (mode,), 1e-4, 1e-4, STEP)
    except AssertionError:
        return True
    return False


def combo_check(fun: Callable, *args: Any, **options: Any) -> Callable:
    def check(*choices: Any, **keywords: Any) -> None:
        named = [[(k, v) for v in vs] for k, vs in keywords.items()]
        for given in itertools.product(*choices):
            for chosen in itertools.product(*named):
                check_grads(fun, *args, **options)(*given, **dict(chosen))

    return check


def scalar_close(a: Any, b: Any) -> bool:
    return bool(abs(a - b) < TOLERANCE or abs(a - b) / abs(a + b) < TOLERANCE)


def check_equivalent(x: Any, y: Any) -> None:
    fg.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6, 1e-6), x, y)


def ag_isinstance(x: Any, kind: Any) -> bool:
    return isinstance(x, kind) or (isinstance(x, Array | Tracer) and kind in (float, np.ndarray))


OPERATORS = {
    "grad": grad, "value_and_grad": value_and_grad, "elementwise_grad": elementwise_grad,
    "grad_and_aux": grad_and_aux, "jacobian": jacobian, "grad_named": grad_named,
    "hessian": _operator(lambda fun, x: fg.hessian(fun)(x)), "multigrad_dict": multigrad_dict,
    "deriv": _operator(lambda fun, x: fg.jvp(fun, (x,), (_ones(x),))[1]),
    "holomorphic_grad": _operator(lambda fun, x: fg.grad(lambda z: fnp.real(fun(z)))(x)),
    "make_vjp": _operator(make_vjp), "make_jvp": _operator(make_jvp), "make_hvp": _operator(_hvp),
    "make_jvp_reversemode": _operator(make_jvp), "make_ggnvp": make_ggnvp,
    "hessian_tensor_product": hessian_tensor_product,
    "hessian_vector_product": hessian_tensor_product,
    "tensor_jacobian_product": tensor_jacobian_product,
    "vector_jacobian_product": tensor_jacobian_product, "checkpoint": fg.checkpoint,
    "isinstance": ag_isinstance, "tuple": tuple, "list": list, "dict": dict,
}  # fmt: skip


def make_diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """What has x as its diagonal: autograd allows the last two axes alone."""
    if (offset, axis1, axis2) != (0, -1, -2):
        raise NotImplementedError("Currently make_diagonal only supports offset=0, last two axes")
    return x[..., None, :] * fnp.eye(x.shape[-1])


def real_if_close(x: Any) -> Any:
    """The real part of numbers whose imaginary part is 0."""
    return fnp.real(x) if fnp.all(fnp.imag(fg.lax.stop_gradient(x)) == 0) else x


NUMPY = {
    "row_stack": fnp.vstack, "make_diagonal": make_diagonal, "longdouble": np.longdouble,
    "where": where, "__version__": np.__version__, "real_if_close": real_if_close,
    **{name: of_lists(getattr(fnp, name)) for name in ("mean", "std", "var", "append")},
    "clip": lambda a, a_min=None, a_max=None: fnp.clip(a, a_min, a_max),
}  # fmt: skip
DIRICHLET = types.SimpleNamespace(
    pdf=fg_stats.dirichlet.pdf, logpdf=fg_stats.dirichlet.logpdf, rvs=scipy.stats.dirichlet.rvs
)
OWN: dict[str, Mapping[str, Any]] = {
    "autograd.numpy": NUMPY,
    "autograd.scipy.stats": {"dirichlet": DIRICHLET},
    "autograd.scipy.stats.multivariate_normal": {
        n: getattr(fg_stats.multivariate_normal, n) for n in ("pdf", "logpdf", "entropy")
    },
    "autograd.numpy.linalg": {"norm": of_lists(fnp.linalg.norm)},
    "autograd.scipy.signal": {"convolve": convolve},
    "autograd.scipy.integrate": {"odeint": lambda f, y0, t, args=(): odeint(f, y0, t, *args)},
    "autograd": OPERATORS,
    "autograd.builtins": OPERATORS,
    "autograd.core": {
        "make_vjp": make_vjp, "make_jvp": make_jvp, "vspace": vspace, "primitive": Primitive,
        "primitive_vjps": VJPS, "defvjp": defvjp,
    },
    "autograd.extend": {"primitive": Primitive, "defvjp": defvjp, "vspace": vspace},
    "autograd.numpy.random": {n: getattr(np.random, n) for n in dir(np.random) if n[0] != "_"},
    "autograd.test_util": {
        "check_grads": check_grads, "combo_check": combo_check, "scalar_close": scalar_close,
        "check_equivalent": check_equivalent,
    },
    "autograd.tracer": {"isbox": lambda x: isinstance(x, Tracer), "primitive": Primitive},
    "autograd.wrap_util": {"unary_to_nary": _operator},
    "autograd.misc": {"const_graph": fg.jit, "flatten": ravel_pytree},
    "autograd.util": {"quick_grad_check": functools.partial(quick_grad_check, check_grads)},
}  # fmt: skip


def own_names(module: str) -> Mapping[str, Any]:
    return OWN.get(module, {})
