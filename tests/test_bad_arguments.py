"""Every public function, called with nonsense in each argument: it works, or says what is wrong.

A good call of each is read off its example; then one argument after the other is replaced.
"""

import ast
import contextlib
import doctest
import functools
import inspect
import math
import sys
import traceback
import types
from pathlib import Path

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn, optim, random, tree
from funcgrad.scipy import linalg, sparse, special

PACKAGE = str(Path(fg.__file__).parent)
MODULES = {
    "fnp": fnp,
    "fnp.linalg": fnp.linalg,
    "fnp.fft": fnp.fft,
    "lax": lax,
    "lax.linalg": lax.linalg,
    "nn": nn,
    "nn.initializers": nn.initializers,
    "random": random,
    "scipy.linalg": linalg,
    "sparse.linalg": sparse.linalg,
    "special": special,
}
# These import what isn't theirs, too.
OWN = ("fnp.linalg", "fnp.fft", "scipy.linalg", "sparse.linalg", "special")
NONSENSE = (None, "a", 10**30, -1, object(), [], {}, math.nan)
EXAMPLE = "<example>"  # the file of functions that examples pass, which may raise what they like
# Whose examples call them inside of a function.
PAIR = np.ones(2, np.float32)
COLLECTIVES = {
    **dict.fromkeys(("all_gather", "pmax", "pmean", "pmin", "psum", "pvary"), (PAIR, "i")),
    "all_to_all": (PAIR, "i", 0, 0),
    "pbroadcast": (PAIR, "i", 0),
    "pcast": (PAIR, "i"),
    "ppermute": (PAIR, "i", [(0, 1)]),
    "pshuffle": (PAIR, "i", [1, 0]),
    "psum_scatter": (PAIR, "i"),
    "pswapaxes": (PAIR, "i", 0),
}
GOOD = {
    "while_loop": eval(compile("lambda x: x < 9, lambda x: x + 5, 3", EXAMPLE, "eval")),
    "stop_gradient": (PAIR,),
    "custom_linear_solve": eval(
        compile("lambda x: 2 * x, PAIR, lambda matvec, b: b / 2", EXAMPLE, "eval")
    ),
}


def public():
    for module, space in MODULES.items():
        for name in dir(space):
            f = getattr(space, name)
            kind = isinstance(f, type | types.ModuleType)
            home = str(getattr(f, "__module__", ""))
            ours = home.startswith(space.__name__ if module in OWN else "funcgrad")
            if callable(f) and not kind and not name.startswith("_") and ours:
                yield pytest.param(name, f, id=f"{module}.{name}")


def good_call(f):
    """The arguments of the first call in a function's example; None where it has none."""
    names = {"fg": fg, "fnp": fnp, "lax": lax, "nn": nn, "np": np, "optim": optim,
             "random": random, "tree": tree}  # fmt: skip
    space = {**vars(sys.modules[f.__module__]), **names}

    def run(node, mode="eval"):
        kind = ast.Expression if mode == "eval" else lambda n: n
        return eval(compile(kind(node), EXAMPLE, mode), space)

    for example in doctest.DocTestParser().get_examples(f.__doc__ or ""):
        code = ast.parse(example.source)
        for node in ast.walk(code):
            try:
                if isinstance(node, ast.Call) and run(node.func) is f:
                    return [run(a) for a in node.args], {k.arg: run(k.value) for k in node.keywords}
            except (NameError, SyntaxError):  # in a function of the example's own
                continue
        with contextlib.suppress(NameError):
            run(code, "exec")
    return None


def parameters(f, args, kwargs):
    """(position or keyword, name) of every argument."""
    try:
        known = list(inspect.signature(f).parameters.values())
    except ValueError:
        known = []
    names = [p.name for p in known]
    for i in range(len(args)):
        yield i, names[min(i, len(names) - 1)] if names else ""
    rest = [
        p.name
        for i, p in enumerate(known)
        if p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and i >= len(args))
    ]
    yield from ((name, name) for name in {**kwargs, **dict.fromkeys(rest)})


def fault(name, f, parameter, error):
    """What is wrong with an error, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename == EXAMPLE for frame in frames):
        return None
    last = frames[-1]
    raised = last.filename.startswith(PACKAGE) and "raise" in (last.line or "")
    if not raised and type(error).__module__ != "funcgrad.errors":
        return f"is not raised by the library, but in {last.filename}:{last.lineno}"
    names = [name, getattr(f, "__name__", ""), parameter]
    if not any(n and n in str(error) for n in names):
        return f"names neither the function nor the argument {parameter}"
    return None


def is_allowed(name, error):
    # The system names the file, which is the argument.
    if isinstance(error, FileNotFoundError):
        return True
    # The function that is called with an argument an axis takes two.
    return name == "fromfunction" and "missing 2 required" in str(error)


def faults(name, f, args, kwargs):
    for where, parameter in parameters(f, args, kwargs):
        for nonsense in NONSENSE:
            given, named = list(args), dict(kwargs)
            (given if isinstance(where, int) else named)[where] = nonsense
            try:
                f(*given, **named)
            except Exception as e:
                found = None if is_allowed(name, e) else fault(name, f, parameter, e)
                if found:
                    yield f"{parameter}={nonsense!r}: {type(e).__name__}({e}) {found}"


def under_axis(f):
    """f as one of two lanes calls it, along the axis "i"."""

    @functools.wraps(f)
    def wrapped(*args, **kwargs):
        fg.vmap(lambda x: (f(*args, **kwargs), x)[1], axis_name="i")(PAIR)

    return wrapped


@pytest.mark.parametrize(("name", "f"), list(public()))
@pytest.mark.filterwarnings("ignore")
def test_nonsense_is_named(name, f, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where save("a") writes
    known = GOOD.get(name) or COLLECTIVES.get(name)
    call = good_call(f) if known is None else (known, {"to": "varying"} if name == "pcast" else {})
    assert call is not None, "no call in the function's example"
    options = np.get_printoptions()
    try:
        assert not list(faults(name, under_axis(f) if name in COLLECTIVES else f, *call))
    finally:
        np.set_printoptions(**options)


@pytest.mark.parametrize(
    "call",
    [tree.leaves, tree.structure, lambda x: tree.map(abs, x), fg.jit(lambda x: 1), fg.grad(sum),
     fg.vmap(lambda x: 1), fg.device_put, fg.jit(lambda x: deep()), fnp.array, fnp.sum],
)  # fmt: skip
def test_what_is_nested_too_deep_is_told_in_words(call):
    with pytest.raises((RecursionError, TypeError, ValueError), match="nested|at index|dimension"):
        call(deep())


def deep():
    nested = 1.0
    for _ in range(100_000):
        nested = [nested]
    return nested
