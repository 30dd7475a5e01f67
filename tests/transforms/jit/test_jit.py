"""jit: arguments, caching, donation, captured values, stages, warnings."""

import functools
import gc
import threading
import warnings
import weakref

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.transforms.jit.jit import RETRACES_BEFORE_WARNING

X = np.array([1.0, 2.0, 3.0], np.float32)
backends = pytest.mark.parametrize("backend", ["numpy", "llvm", "plain"])


def same(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), got, want)


class Counter:
    """A function that counts how often it is traced."""

    def __init__(self, fun):
        self.fun = fun
        self.traces = 0

    def __call__(self, *args, **kwargs):
        self.traces += 1
        return self.fun(*args, **kwargs)


# ---- arguments and results


@backends
def test_trees_in_and_out(backend):
    @functools.partial(fg.jit, backend=backend)
    def f(p, xs, *rest, k=2, **more):
        return {"y": p["w"] * k, "n": None, "all": [*xs, *rest], "more": more}

    out = f({"w": X, "none": None}, (X, 1), 2.5, k=3, z=X)
    same(out["y"], 3 * X)
    assert out["n"] is None
    same(out["all"], [X, 1, 2.5])
    same(out["more"], {"z": X})


@backends
@pytest.mark.parametrize(
    ("value", "dtype", "weak"),
    [
        (2, "int32", True),
        (2.0, "float32", True),
        (2j, "complex64", True),
        (True, "bool", False),
        (np.float64(2), "float64", True),  # as it yields to an array beside it
        (np.int8(2), "int8", False),
        (np.arange(3.0), "float64", False),
        (np.arange(3, dtype=">i4"), "int32", False),
        (np.arange(6.0)[::2], "float64", False),
        (np.ones((0, 2)), "float64", False),
        (fnp.asarray(2.0, "bfloat16"), "bfloat16", False),
    ],
)
def test_types_of_arguments(backend, value, dtype, weak):
    out = fg.jit(lambda x: (x, x), backend=backend)(value)[1]
    assert type(out) is fg.Array
    assert (out.dtype.name, out.weak_type) == (dtype, weak)
    np.testing.assert_array_equal(np.asarray(out), np.asarray(value))


@backends
def test_results_that_are_constants_inputs_and_repeats(backend):
    w = fnp.ones(2)
    f = fg.jit(lambda x, y: (x, x, 3, w, fnp.zeros(2), y, (), 2.5, True), backend=backend)
    out = f(X, 7)
    same(out[:6], (X, X, 3, np.ones(2), np.zeros(2), 7))
    assert out[6] == ()
    assert [o.dtype.name for o in out[7:]] == ["float32", "bool"]
    assert [o.weak_type for o in out[7:]] == [True, False]
    assert fg.jit(lambda: (), backend=backend)() == ()
    assert fg.jit(lambda x: None, backend=backend)(X) is None


@backends
def test_the_same_array_twice(backend):
    x = fnp.asarray(X)
    same(fg.jit(lambda a, b: (a + b, a), backend=backend)(x, x), (2 * X, X))


@backends
def test_unused_arguments(backend):
    same(fg.jit(lambda a, b, c: b * 2.0, backend=backend)(X, X, np.ones((5, 5))), 2 * X)


def test_methods_partials_and_callables():
    class Model:
        scale = 3.0

        def __init__(self, w):
            self.w = w

        @fg.jit
        def plain(self, x):
            return self.w * x

        @functools.partial(fg.jit, static_argnums=0)
        def static(self, x):
            return self.w * x * self.scale

        def __call__(self, x):
            return self.w - x

    m = Model(2.0)
    same(m.static(X), 6 * X)
    same(fg.jit(m)(X), 2 - X)
    same(fg.jit(functools.partial(fnp.add, X))(X), 2 * X)
    same(fg.jit(tree.Partial(fnp.add, X))(X), 2 * X)
    assert fg.jit(m).__name__ == "jit(Model)"
    with pytest.raises(TypeError, match="argument self must be an array.*Model"):
        m.plain(X)


def test_methods_of_registered_classes():
    @tree.register_pytree_node_class
    class Model:
        def __init__(self, w):
            self.w = w

        def tree_flatten(self):
            return (self.w,), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

        @fg.jit
        def apply(self, x):
            return self.w * x

    same(Model(2.0).apply(X), 2 * X)
    assert Model.apply.cache_info().currsize == 1


def test_name_docstring_and_repr():
    @fg.jit
    def f(x):
        """Does it."""
        return x

    assert f.__name__ == "jit(f)"
    assert f.__doc__ == "Does it."
    assert repr(f) == "jit(f)"


# ---- static arguments


def test_static_by_number_and_by_name():
    def f(x, n, *, mode="a"):
        return x * n if mode == "a" else x + n

    for options in ({"static_argnums": 1, "static_argnames": "mode"},
                    {"static_argnums": (1,), "static_argnames": ["mode"]},
                    {"static_argnums": -1, "static_argnames": "mode"},
                    {"static_argnames": ("n", "mode")}):  # fmt: skip
        g = fg.jit(f, **options)
        same(g(X, 3), 3 * X)
        same(g(X, n=3), 3 * X)
        same(g(X, 3, mode="b"), X + 3)
        same(g(n=3, x=X, mode="b"), X + 3)


def test_static_values_are_python_values():
    @functools.partial(fg.jit, static_argnames=("n", "shape", "f"))
    def g(x, n, shape, f=fnp.sin):
        for _ in range(n):
            x = f(x)
        return fnp.broadcast_to(x, shape)

    assert g(1.0, 2, (2, 3)).shape == (2, 3)
    same(g(1.0, 1, (), f=fnp.cos), np.cos(1.0))


def test_each_static_value_is_traced_once():
    f = Counter(lambda x, n: x * n)
    g = fg.jit(f, static_argnums=1)
    for n in (1, 2, 1, 2, 1.0, True, 1):
        g(X, n)
    assert f.traces == 4, "1, 1.0 and True are equal, but not the same program"
    assert g(np.arange(3), 1.0).dtype == np.float32
    h = fg.jit(lambda x, t: x * t[0], static_argnums=1)
    assert [h(np.arange(3), (v,)).dtype.name for v in (1, 1.0)] == ["int64", "float32"]
    assert [float(h(1.0, (v,))) for v in (0.0, -0.0)] == [0.0, 0.0]
    assert [np.signbit(h(1.0, (v,))) for v in (0.0, -0.0)] == [False, True]


def test_static_arguments_that_no_parameter_has():
    with pytest.raises(ValueError, match="static_argnums=2, but the function has 1"):
        fg.jit(lambda x: x, static_argnums=2)
    with pytest.raises(ValueError, match="static_argnames='k' is no parameter"):
        fg.jit(lambda x: x, static_argnames="k")
    with pytest.raises(ValueError, match="donate_argnums=1"):
        fg.jit(lambda x: x, donate_argnums=1)
    assert float(fg.jit(lambda *a: a[1], static_argnums=0)("s", 2.0)) == 2.0
    assert float(fg.jit(lambda **k: k["x"], static_argnames="s")(s="s", x=2.0)) == 2.0


# ---- the cache


def test_same_types_trace_once():
    f = Counter(lambda x, y: x + y)
    g = fg.jit(f)
    for i in range(3):
        g(X, i)
        g(X * i, np.int32(1) * i + 1)
    assert f.traces <= 2, "a Python int is weak, a numpy one is not"
    info = g.cache_info()
    assert info.misses == info.currsize == f.traces
    assert info.hits == 6 - f.traces


def test_a_function_compiled_again_keeps_its_programs():
    traces = []

    def f(x, k=2):
        traces.append(k)
        return x * k

    for _ in range(3):
        assert float(fg.jit(f)(1.0)) == 2.0
        assert float(fg.vmap(fg.jit(f))(X)[0]) == 2 * X[0]
    assert len(traces) == 2
    for _ in range(2):
        assert float(fg.jit(f, static_argnums=1)(1.0, 3)) == 3.0
    assert len(traces) == 3
    gone = weakref.ref(f)
    del f
    gc.collect()
    assert gone() is None


def test_what_makes_another_program():
    f = Counter(lambda t: tree.map(lambda x: x * 2, t))
    g = fg.jit(f)
    given = [X, X[:2], X.astype("float64"), {"a": X}, [X], (X,), {"b": X}, 2.0, fnp.float32(2.0)]
    for x in given:
        g(x)
    assert f.traces == len(given)
    for x in given:
        g(x)
    assert f.traces == len(given)
    g.clear_cache()
    assert g.cache_info() == (0, 0, 0)
    g(X)
    assert f.traces == len(given) + 1


def test_order_of_keywords_does_not_matter():
    f = Counter(lambda *, a, b: a - b)
    g = fg.jit(f)
    same(g(a=X, b=1.0), X - 1)
    same(g(b=1.0, a=X), X - 1)
    assert f.traces == 1


def test_traced_once_inside_other_transformations():
    f = Counter(lambda x: fnp.sin(x) * x)
    g = fg.jit(f)
    for _ in range(3):
        fg.grad(g)(2.0)
        fg.vmap(g)(X)
        fg.vmap(fg.grad(g))(X)
        g(2.0)
    assert f.traces <= 2


def test_gradients_of_compiled_functions_compile_once():
    g = fg.jit(lambda x: fnp.sum(fnp.sin(x)))
    outer = Counter(fg.grad(g))
    h = fg.jit(outer)
    for _ in range(3):
        same(h(X), np.cos(X))
    assert outer.traces == 1


def test_errors_are_not_cached():
    fail = [True]

    @fg.jit
    def f(x):
        if fail[0]:
            raise ZeroDivisionError
        return x + 1

    with pytest.raises(ZeroDivisionError):
        f(X)
    fail[0] = False
    same(f(X), X + 1)


# ---- captured values


@backends
def test_captured_arrays_are_inputs(backend):
    w = fnp.asarray(X)
    f = fg.jit(lambda x: x * w, backend=backend)
    same(f(X), X * X)
    jaxpr = f.trace(X).jaxpr
    assert len(jaxpr.consts) == 1
    assert jaxpr.consts[0] is w


def test_captured_tracers_of_enclosing_transformations():
    def f(a):
        inner = fg.jit(lambda x: x * a + fnp.sum(a))
        return fnp.sum(inner(X) * inner(2 * X))

    want = fg.grad(lambda a: fnp.sum((X * a + fnp.sum(a)) * (2 * X * a + fnp.sum(a))))
    same(fg.grad(f)(X), want(X))
    same(fg.jit(fg.grad(f))(X), want(X))
    same(fg.vmap(f)(np.stack([X, X]))[0], f(X))
    same(fg.grad(fg.jit(f))(X), want(X))


def test_programs_with_captured_tracers_are_not_kept():
    def f(a):
        g = fg.jit(lambda x: x * a)
        g(X)
        assert g.cache_info().currsize == 0
        return fnp.sum(g(X))

    fg.grad(f)(2.0)


def test_nested():
    inner = Counter(lambda x: fnp.sin(x))
    g = fg.jit(inner)
    f = fg.jit(lambda x: g(x) + g(x * 2.0) + fg.jit(g)(x))
    same(f(X), 2 * np.sin(X) + np.sin(2 * X))
    assert inner.traces == 1


def test_many_threads_may_call_at_once():
    f = fg.jit(lambda x, n: fnp.sum(x * n))
    results = {}

    def work(i):
        x = fnp.full((100,), float(i))
        results[i] = [float(f(x, 2.0)) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {i: [200.0 * i] * 20 for i in range(8)}


# ---- warnings


def test_repeated_retraces_warn_once_naming_the_argument():
    f = fg.jit(lambda x: x * 2.0, backend="numpy")
    words = r"traced 16 times.*argument x changed from.*\[15\] to.*\[16\]"
    with pytest.warns(UserWarning, match=words):
        _ = [f(np.ones(n + 1)) for n in range(RETRACES_BEFORE_WARNING)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(np.ones(50))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (lambda i: (X, i), "static argument n changed from 14 to 15"),
        (lambda i: ({str(i): X}, 0), "the structure of the arguments changed"),
    ],
)
def test_retraces_by_other_causes(args, words):
    f = fg.jit(lambda x, n: x, static_argnums=1, backend="numpy")
    with pytest.warns(UserWarning, match=words):
        _ = [f(*args(i)) for i in range(RETRACES_BEFORE_WARNING)]


def test_stages_tell_of_arguments():
    f = fg.jit(lambda x, *, k: x["a"] + k, donate_argnums=0)
    lowered = f.lower({"a": np.ones(3, np.float32)}, k=2)
    for stage in (f.trace({"a": np.ones(3, np.float32)}, k=2), lowered, lowered.compile()):
        args, kwargs = stage.args_info
        info = args[0]["a"]
        assert (info.shape, info.dtype, info.donated) == ((3,), "float32", True)
        assert not kwargs["k"].donated
        assert stage.donate_argnums == (0,)
        assert stage.in_tree == tree.structure((({"a": 0},), {"k": 0}))
