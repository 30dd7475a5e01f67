"""Tracers: array-like inside a transformation, concrete where the value is known."""

import copy

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core.trace import Tracer
from funcgrad.errors import (
    ConcretizationError,
    LeakedTracerError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
)


def inside(transform):
    """The tracer that a transform gives to its function for ones((3, 2)), used inside by `use`."""

    def run(use):
        def f(x):
            run.result = use(x)
            return fnp.sum(x)

        transform(f)(fnp.ones((3, 2)))
        return run.result

    return run


jitted, differentiated = inside(fg.jit), inside(fg.grad)
mapped = inside(fg.vmap)
everywhere = pytest.mark.parametrize("run", [jitted, differentiated], ids=["jit", "grad"])


@everywhere
def test_attributes(run):
    seen = run(lambda x: (x.shape, x.dtype, x.ndim, x.size, x.nbytes, x.weak_type, len(x)))
    assert seen == ((3, 2), np.float32, 2, 6, 24, False, 3)
    assert run(lambda x: isinstance(x, Tracer) and not isinstance(x, fg.Array))
    assert mapped(lambda x: x.shape) == (2,)


@everywhere
def test_copies_and_repr(run):
    assert run(lambda x: copy.copy(x) is x and copy.deepcopy([x])[0] is x)
    assert run(repr).startswith("Traced<f32[3,2]> by ")
    assert run(lambda x: f"{x[0, 0]}").startswith("Traced<f32[]>")
    with pytest.raises(TypeError, match="unhashable"):
        run(hash)


def test_iteration_unpacking_and_zero_dimensions():
    assert jitted(lambda x: [r.shape for r in x]) == [(2,)] * 3
    with pytest.raises(TypeError, match="0-d"):
        jitted(lambda x: len(fnp.sum(x)))
    with pytest.raises(TypeError, match="0-d"):
        jitted(lambda x: list(fnp.sum(x)))


def test_numpy_operators_defer():
    for run in (jitted, differentiated):
        assert run(lambda x: isinstance(np.ones(2, "float32") * x, Tracer))
        assert run(lambda x: isinstance(np.float32(2) - x, Tracer))


def test_values_are_known_under_grad():
    def f(x):
        y = x * 2.0
        assert y
        assert (float(y), int(y), complex(y)) == (6.0, 6, 6 + 0j)
        assert y.item() == y.tolist() == 6.0
        assert x.item() == 3.0
        assert f"{y:.1f}" == "6.0"
        while x < 10:
            x = x * 2.0
        return x if x > 11 else x * 100.0

    assert float(fg.grad(f)(3.0)) == 4.0
    assert float(fg.grad(fg.grad(lambda x: f(x) * x))(3.0)) == 8.0


def test_values_are_known_where_nothing_is_traced():
    def f(x, n):
        return sum(x for _ in range(n))

    assert float(fg.grad(f)(3.0, 2)) == 2.0
    np.testing.assert_array_equal(fg.vmap(f, in_axes=(0, None))(np.arange(2.0), 3), [0, 3])


def test_integers_computed_from_known_values_index():
    def f(x):
        i = fnp.argmax(x)
        return x[int(i)] * [1.0, 10.0, 100.0][i]

    np.testing.assert_array_equal(fg.grad(f)(fnp.asarray([1.0, 3.0, 2.0])), [0, 10, 0])


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda x: bool(x[0, 0] > 0), TracerBoolConversionError, "True or False.*argument x"),
        (lambda x: int(x[0, 0]), TracerIntegerConversionError, r"int\(\).*static_argnums"),
        (lambda x: [1, 2][x[0, 0].astype(int)], TracerIntegerConversionError, "an index"),
        (lambda x: range(x[0, 0].astype(int)), TracerIntegerConversionError, "range"),
        (lambda x: float(x[0, 0]), ConcretizationError, r"float\(\) needs a value"),
        (lambda x: complex(x[0, 0]), ConcretizationError, r"complex\(\) needs a value"),
        (lambda x: x.item(), ConcretizationError, r"item\(\) needs a value"),
        (lambda x: x.tolist(), ConcretizationError, r"tolist\(\) needs values"),
        (np.asarray, TracerArrayConversionError, "NumPy was given.*argument x"),
        (np.sin, TracerArrayConversionError, "Use funcgrad.numpy in place of numpy"),
    ],
)
def test_values_are_unknown_inside_jit(use, error, words):
    with pytest.raises(error, match=f"(?s){words}") as caught:
        jitted(use)
    assert "test_trace.py" in str(caught.value)


@pytest.mark.parametrize(
    "use",
    [
        lambda: fg.grad(np.sin)(1.0),
        lambda: fg.vmap(np.sin)(fnp.ones(3)),
        lambda: fg.linearize(np.sin, 1.0),
        lambda: fg.jvp(np.asarray, (1.0,), (1.0,)),
    ],
)
def test_numpy_is_refused_everywhere_as_it_drops_what_is_traced(use):
    with pytest.raises(TracerArrayConversionError, match="can't follow"):
        use()


def test_under_vmap_lanes_have_no_one_value():
    with pytest.raises(TracerBoolConversionError, match="differs along the axis that vmap maps"):
        fg.vmap(lambda x: x if x > 0 else -x)(fnp.ones(3))


@pytest.mark.parametrize("transform", [fg.jit, fg.grad, fg.vmap], ids=lambda t: t.__name__)
def test_leaks_are_found_when_used(transform):
    held = []

    def f(x):
        y = x * 2.0
        held.append(y)
        return fnp.sum(x)

    transform(f)(fnp.ones(3))
    for use in (
        lambda: held[0] + 1.0,
        lambda: fg.jit(lambda x: x + held[0])(1.0),
        lambda: fg.grad(lambda x: fnp.sum(x * held[0]))(1.0),
        lambda: fg.jit(fnp.sin)(held[0]),
        lambda: bool(held[0]),
        lambda: np.asarray(held[0]),
    ):
        with pytest.raises(LeakedTracerError, match=r"`held\[0\]` holds a tracer f32\["):
            use()


def test_tracers_of_an_outer_transformation_are_no_leak():
    def f(x):
        inner = fg.vmap(lambda y: x * y)(fnp.ones(3))
        deeper = fg.jit(lambda y: fnp.sum(x * y))(inner)
        return deeper + fg.grad(lambda y: x * y)(2.0)

    assert float(fg.grad(f)(2.0)) == 13.0
    assert float(fg.jit(fg.grad(f), backend="numpy")(2.0)) == 13.0
