"""Collectives over the named axes of vmap, against explicit formulas."""

import functools

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, tree
from funcgrad.errors import DifferentiationError, ShapeError

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 3 - 1
N = len(X)
mapped = functools.partial(fg.vmap, axis_name="i")


def close(got, want):
    tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)


def every(value):
    """The same value in every lane."""
    return np.broadcast_to(value, (N, *np.shape(value)))


REDUCTIONS = {
    "psum": (lax.psum, np.sum), "pmean": (lax.pmean, np.mean),
    "pmax": (lax.pmax, np.max), "pmin": (lax.pmin, np.min),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("jit", [False, True], ids=["", "jit"])
def test_reductions(name, jit):
    collective, reduce = REDUCTIONS[name]
    f = mapped(lambda x: collective(x, "i"))
    close((fg.jit(f) if jit else f)(X), every(reduce(X, axis=0)))
    close(mapped(fg.jit(lambda x: collective(x, "i")))(X), every(reduce(X, axis=0)))
    # Of a value that is the same in all lanes.
    close(mapped(lambda x: collective(2.0, "i"))(X), every(reduce(np.full(N, 2.0))))


def test_reductions_of_trees_integers_and_booleans():
    out = mapped(lambda x: lax.psum({"a": x, "b": (x > 0, 1)}, "i"))(X)
    close(out["a"], every(X.sum(0)))
    close(out["b"][0], every((X > 0).sum(0)))
    close(out["b"][1], every(N))
    assert out["b"][0].dtype == np.int32
    assert mapped(lambda x: lax.pmean(1, "i"))(X).dtype == np.float32


def test_axis_index_and_size():
    close(mapped(lambda x: lax.axis_index("i"))(X), np.arange(N))
    close(mapped(lambda x: x * lax.axis_size("i"))(X), N * X)
    assert mapped(lambda: lax.axis_index("i"), axis_size=3)().tolist() == [0, 1, 2]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_all_gather(axis):
    got = mapped(lambda x: lax.all_gather(x, "i", axis=axis))(X)
    close(got, every(np.moveaxis(X, 0, axis)))
    rows = X.reshape(N, 3, 1)
    tiled = mapped(lambda x: lax.all_gather(x, "i", axis=0, tiled=True))(rows)
    close(tiled, every(X.reshape(-1, 1)))


def test_psum_scatter():
    t = np.arange(N * N * 2, dtype="float32").reshape(N, N, 2)
    close(mapped(lambda x: lax.psum_scatter(x, "i"))(t), t.sum(0))
    wide = np.arange(N * 2 * N, dtype="float32").reshape(N, 2 * N)
    got = mapped(lambda x: lax.psum_scatter(x, "i", tiled=True))(wide)
    close(got, wide.sum(0).reshape(N, 2))
    with pytest.raises(ShapeError, match="must have size 4"):
        mapped(lambda x: lax.psum_scatter(x, "i"))(X)
    with pytest.raises(ShapeError, match="must have size 4; pass tiled=True"):
        mapped(lambda x: lax.all_to_all(x, "i", 0, 0))(X)


def test_ppermute_and_shuffle():
    perm = [(i, (i + 1) % N) for i in range(N)]
    close(mapped(lambda x: lax.ppermute(x, "i", perm))(X), np.roll(X, 1, 0))
    some = mapped(lambda x: lax.ppermute(x, "i", [(0, 2)]))(X)
    close(some, np.stack([0 * X[0], 0 * X[0], X[0], 0 * X[0]]))
    close(mapped(lambda x: lax.pshuffle(x, "i", [3, 2, 1, 0]))(X), X[::-1])


def test_all_to_all():
    t = np.arange(N * N * 2, dtype="float32").reshape(N, N, 2)
    got = mapped(lambda x: lax.all_to_all(x, "i", split_axis=0, concat_axis=0))(t)
    close(got, t.transpose(1, 0, 2))


# ---- several axes


def nested(f, **options):
    return fg.vmap(fg.vmap(f, axis_name="j"), axis_name="i", **options)


def test_nested_axes():
    t = np.arange(24, dtype="float32").reshape(2, 3, 4)
    close(nested(lambda x: lax.psum(x, "j"))(t), np.broadcast_to(t.sum(1, keepdims=True), t.shape))
    close(nested(lambda x: lax.psum(x, "i"))(t), np.broadcast_to(t.sum(0), t.shape))
    both = np.broadcast_to(t.sum((0, 1)), t.shape)
    close(nested(lambda x: lax.psum(x, ("i", "j")))(t), both)
    close(nested(lambda x: lax.psum(lax.psum(x, "j"), "i"))(t), both)
    close(nested(lambda x: lax.pmean(x, ("j", "i")))(t), both / 6)
    close(nested(lambda x: lax.axis_index(("i", "j")))(t), np.arange(6).reshape(2, 3))
    close(nested(lambda x: lax.axis_index("i") * 10 + lax.axis_index("j"))(t),
          [[0, 1, 2], [10, 11, 12]])  # fmt: skip
    gathered = nested(lambda x: lax.all_gather(x, "i"))(t)
    close(gathered[1, 2], t[:, 2])


SEVERAL = [("a", "b"), ("b", "a"), ("a", "b", "c"), ("c", "b", "a"), ("c", "a"), ("b", "c", "a")]
GRID = {"a": 2, "b": 3, "c": 2}
LANES = np.random.default_rng(0).normal(size=(2, 3, 2, 12, 4, 12)).astype("float32")


def on_grid(f):
    """A function of a lane, for all lanes of the grid."""
    for name in reversed(GRID):
        f = fg.vmap(f, axis_name=name)
    return f


def in_a_row(f, names, x):
    """A function of lanes along one axis, for those of several axes in a row, for each lane of the
    others."""
    letters = list(GRID)
    order = [letters.index(n) for n in names]
    rest = [i for i in range(3) if i not in order]
    moved = x.transpose(*rest, *order, *range(3, x.ndim))
    n = np.prod([GRID[k] for k in names])
    others = moved.reshape(-1, n, *x.shape[3:])
    out = np.stack([np.asarray(f(v)) for v in others])
    out = out.reshape(moved.shape[:3] + out.shape[2:])
    return out.transpose(*np.argsort([*rest, *order]), *range(3, out.ndim))


@pytest.mark.parametrize("names", SEVERAL, ids=str)
@pytest.mark.parametrize(("split", "concat"), [(0, 1), (2, 0), (0, 0)])
def test_all_to_all_over_several_axes(names, split, concat):
    def f(x, names=names):
        return lax.all_to_all(x, names, split, concat, tiled=True)

    want = in_a_row(fg.vmap(lambda x: f(x, "i"), axis_name="i"), names, LANES)
    close(on_grid(f)(LANES), want)
    close(fg.jit(on_grid(f))(LANES), want)
    weights = np.cos(want)
    grad = fg.grad(lambda x: fnp.sum(on_grid(f)(x) * weights))(LANES)
    close(on_grid(f)(grad), weights)
    # Lanes of no named axis, too.
    inner = on_grid(lambda x: fg.vmap(lambda v: f(v), in_axes=1, out_axes=2)(x))
    wide = np.stack([LANES, -LANES], 4)
    close(inner(wide), np.stack([want, -want], 5))


def test_all_to_all_over_several_axes_untiled():
    x = LANES[:, :, :, :6, :, 0]
    want = in_a_row(fg.vmap(lambda x: lax.all_to_all(x, "i", 0, 1), axis_name="i"), ("b", "a"), x)
    close(on_grid(lambda x: lax.all_to_all(x, ("b", "a"), 0, 1))(x), want)
    with pytest.raises(ShapeError, match="must have size 6; pass tiled=True"):
        on_grid(lambda x: lax.all_to_all(x, ("b", "a"), 0, 1))(LANES)


@pytest.mark.parametrize("names", SEVERAL, ids=str)
@pytest.mark.parametrize("kind", ["shift", "some", "random", "one", "none"])
def test_ppermute_over_several_axes(names, kind):
    n = int(np.prod([GRID[k] for k in names]))
    shift = [(i, (i + 1) % n) for i in range(n)]
    mixed = list(enumerate(np.random.default_rng(n).permutation(n).tolist()))
    perm = {"shift": shift, "some": mixed[1:], "random": mixed, "one": [(0, n - 1)], "none": []}
    f = lambda x, names=names: lax.ppermute(x, names, perm[kind])
    want = in_a_row(fg.vmap(lambda x: f(x, "i"), axis_name="i"), names, LANES)
    got = on_grid(f)(LANES)
    close(got, want)
    weights = np.cos(LANES)
    grad = fg.grad(lambda x: fnp.sum(on_grid(f)(x) * weights))(LANES)
    back = lambda x: lax.ppermute(x, names, [(b, a) for a, b in perm[kind]])
    close(grad, on_grid(back)(weights))
    # Signs of zeros and NaN arrive as they are sent.
    odd = np.where(LANES > 0, np.float32(-0.0), np.float32(np.nan))
    want = in_a_row(fg.vmap(lambda x: f(x, "i"), axis_name="i"), names, odd)
    np.testing.assert_array_equal(np.signbit(on_grid(f)(odd)), np.signbit(want))


def test_axes_named_twice_are_refused():
    for f in (
        lambda x: lax.ppermute(x, ("a", "a"), []),
        lambda x: lax.all_to_all(x, ["b", "a", "b"], 0, 0),
        lambda x: lax.all_gather(x, ("a", "a")),
    ):
        with pytest.raises(ValueError, match="names an axis twice"):
            on_grid(f)(LANES)
    with pytest.raises(ValueError, match=r"distinct lanes below 6, got \(\(0, 6\),\)"):
        on_grid(lambda x: lax.ppermute(x, ("a", "b"), [(0, 6)]))(LANES)


def test_a_collective_passes_axes_that_are_not_its_own():
    t = np.arange(24, dtype="float32").reshape(2, 3, 4)
    f = fg.vmap(lambda x: fg.vmap(lambda y: lax.all_gather(y, "i"))(x), axis_name="i")
    close(f(t)[0], t.transpose(1, 0, 2))
    g = fg.vmap(lambda x: fg.vmap(lambda y: lax.ppermute(y, "i", [(0, 1), (1, 0)]))(x),
                axis_name="i")  # fmt: skip
    close(g(t), t[::-1])


# ---- derivatives: each lane's gradient of the sum over all lanes


def test_gradient_of_a_mapped_function():
    f = lambda x: fnp.sum(mapped(lambda v: v * lax.psum(v, "i"))(x))
    close(fg.grad(f)(X), every(2 * X.sum(0)))
    g = lambda x: fnp.sum(mapped(lambda v: lax.pmean(v, "i") ** 2)(x))
    close(fg.grad(g)(X), every(2 * X.mean(0)))


@pytest.mark.parametrize(
    "collective",
    [
        lambda v: lax.all_gather(v, "i"),
        lambda v: lax.ppermute(v, "i", [(0, 1), (1, 3), (3, 0)]),
        lambda v: lax.psum(v, "i"),
        lambda v: lax.psum_scatter(fnp.stack([v, 2 * v, 3 * v, 4 * v]), "i"),
        lambda v: lax.all_to_all(fnp.stack([v, 2 * v, 3 * v, 4 * v]), "i", 0, 0),
    ],
    ids=["all_gather", "ppermute", "psum", "psum_scatter", "all_to_all"],
)
def test_transposes(collective):
    f = mapped(collective)
    out = f(X)
    weights = np.cos(np.arange(out.size, dtype="float32")).reshape(out.shape)
    scalar = lambda x: fnp.sum(f(x) * weights)
    jac = np.stack(
        [np.asarray(f(e)).ravel() for e in np.eye(12, dtype="float32").reshape(12, N, 3)]
    )
    want = (jac @ weights.ravel()).reshape(N, 3)
    close(fg.grad(scalar)(X), want)
    close(fg.jit(fg.grad(scalar))(X), want)
    close(fg.jvp(f, (X,), (X,))[1], out)


def test_gradient_inside_the_map():
    # psum's transpose is psum: the gradients that lanes send each other are summed.
    g = mapped(fg.grad(lambda v: fnp.sum(lax.psum(v, "i") ** 2)))(X)
    close(g, every(2 * N * X.sum(0)))
    normalized = mapped(fg.grad(lambda v: fnp.sum(v * lax.pmean(v, "i"))))(X)
    close(normalized, every(2 * X.mean(0)))


def test_pmax_says_why_it_has_no_gradient():
    with pytest.raises(DifferentiationError, match="pmax has no differentiation rule.*all_gather"):
        mapped(fg.grad(lambda v: fnp.sum(lax.pmax(v, "i"))))(X)
    # Mapped first, it is a maximum like any other.
    g = fg.grad(lambda x: fnp.sum(mapped(lambda v: lax.pmax(v, "i"))(x)))(X)
    close(g, np.array([[0], [0], [0], [N]]) * np.ones(3))


# ---- inside other transformations


def test_inside_control_flow_and_calls():
    body = lambda c, x: (c + lax.psum(x, "i"), lax.axis_index("i"))
    total, index = mapped(lambda v: lax.scan(body, 0.0, v))(X)
    close(total, every(X.sum()))
    close(index, np.arange(N)[:, None] * np.ones(3))
    branch = mapped(lambda v: lax.cond(True, lambda: lax.psum(v, "i"), lambda: v))(X)
    close(branch, every(X.sum(0)))
    grew = mapped(lambda v: lax.while_loop(
        lambda c: c < 10, lambda c: c + lax.psum(1.0, "i"), 0.0))(X)  # fmt: skip
    close(grew, every(12.0))
    close(mapped(fg.checkpoint(lambda v: lax.psum(fnp.sin(v), "i")))(X), every(np.sin(X).sum(0)))


def test_batch_normalization_as_a_user_writes_it():
    def layer(w, x):
        y = w * x
        mean, var = lax.pmean(y, "b"), lax.pmean(y**2, "b") - lax.pmean(y, "b") ** 2
        return (y - mean) / fnp.sqrt(var + 1e-5)

    def loss(w):
        return fnp.sum(fg.vmap(layer, (None, 0), axis_name="b")(w, X) ** 3)

    def plain(w):
        y = w * X
        z = (y - fnp.mean(y, 0)) / fnp.sqrt(fnp.mean(y**2, 0) - fnp.mean(y, 0) ** 2 + 1e-5)
        return fnp.sum(z**3)

    w = np.array([1.0, 2.0, 3.0], "float32")
    np.testing.assert_allclose(fg.grad(loss)(w), fg.grad(plain)(w), atol=1e-3)
    np.testing.assert_allclose(fg.jit(loss)(w), plain(w), atol=1e-3)


def test_custom_rules_may_use_names():
    @fg.custom_vjp
    def normalized(x):
        return x - lax.pmean(x, "i")

    normalized.defvjp(
        lambda x: (normalized(x), None), lambda _, g: (10.0 * (g - lax.pmean(g, "i")),)
    )
    f = lambda x: fnp.sum(mapped(normalized)(x) * X)
    close(fg.grad(f)(X), 10 * (X - X.mean(0)))


def test_custom_functions_of_unmapped_arguments_may_use_names():
    @fg.custom_jvp
    def scaled(x):
        return x * lax.axis_index("i")

    scaled.defjvps(lambda t, out, x: 10.0 * t * lax.axis_index("i"))
    close(mapped(lambda v: v[0] * scaled(2.0))(X), X[:, 0] * 2 * np.arange(N))
    g = fg.grad(lambda w: fnp.sum(mapped(lambda v: v[0] * scaled(w))(X)))(2.0)
    close(g, np.sum(X[:, 0] * 10 * np.arange(N)))
    plain = fg.custom_jvp(lambda x: x * 2.0)
    plain.defjvps(lambda t, out, x: t)
    close(mapped(lambda v: plain(3.0), out_axes=None)(X), 6.0)


# ---- what is refused


@pytest.mark.parametrize(
    "use",
    [
        lambda: lax.psum(1.0, "i"),
        lambda: lax.axis_index("i"),
        lambda: fg.jit(lambda x: lax.psum(x, "i"))(1.0),
        lambda: mapped(lambda x: lax.all_gather(x, "k"))(X),
        lambda: lax.axis_size("i"),
    ],
)
def test_unknown_names(use):
    with pytest.raises(NameError, match=r"no axis is named '.'.*axis_name="):
        use()


def test_the_known_names_are_listed():
    with pytest.raises(NameError, match="no axis is named 'k' here; named axes: 'i', 'j'"):
        nested(lambda x: lax.psum(x, "k"))(np.ones((2, 2)))


def test_a_name_ends_with_its_map():
    mapped(lambda x: x)(X)
    with pytest.raises(NameError):
        lax.axis_size("i")


@pytest.mark.parametrize("name", ["all_gather", "psum_scatter"])
def test_an_axis_must_be_named(name):
    with pytest.raises(ValueError, match=f"{name}: axis_name must name an axis"):
        getattr(lax, name)(np.ones(2), ())


def test_broadcast_of_one_lane():
    close(mapped(lambda x: lax.pbroadcast(x, "i", 2))(X), every(X[2]))
    close(mapped(lambda x: lax.pbroadcast(x > 0, "i", -1))(X), every(X[-1] > 0))
    both = nested(lambda x: lax.pbroadcast(x, ("i", "j"), 4))(X)
    close(both, np.full((4, 3), X[1, 1]))
    g = fg.grad(lambda x: fnp.sum(mapped(lambda v: lax.pbroadcast(v, "i", 1))(x)))(X)
    close(g, N * np.eye(N)[:, 1:2] * np.ones(3))
    with pytest.raises(ValueError, match="no lane 4 among 4"):
        mapped(lambda x: lax.pbroadcast(x, "i", 4))(X)
    with pytest.raises(ValueError, match='to must be "varying"'):
        mapped(lambda x: lax.pcast(x, "i", to="reduced"))(X)
