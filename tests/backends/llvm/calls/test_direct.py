"""Direct calls do what calls by way of Python do: results, errors, donation, reference counts."""

import collections
import dataclasses
import gc
import sys
import threading
import warnings
import weakref

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.backends.llvm.calls import direct
from funcgrad.core.array import Array

pytestmark = pytest.mark.skipif(not direct.available(), reason="another Python or NumPy")


@pytest.fixture
def count(monkeypatch):
    """How many calls went by way of Python."""
    calls = collections.Counter()
    by_python = type(fg.jit(lambda: 0))._call

    def counted(self, args, kwargs):
        calls["python"] += 1
        return by_python(self, args, kwargs)

    monkeypatch.setattr(type(fg.jit(lambda: 0)), "_call", counted)
    return calls


Pair = collections.namedtuple("Pair", "left right")


@fg.tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: object
    b: object
    width: int = dataclasses.field(metadata={"static": True})


class Odd(str):
    """Equal to a str, but another class of key."""


X, Y, Z = fnp.arange(4.0), fnp.ones((2, 3)), fnp.array(2)
TREES = {
    "array": X,
    "dict": {"b": X, "a": Y},
    "nested": {"w": [X, (Y, {"z": Z})], "a": None, "t": ()},
    "namedtuple": Pair(X, [Y]),
    "dataclass": Layer(X, {"c": Y}, 3),
    "ordered": collections.OrderedDict([("z", X), ("a", Y)]),
    "default": collections.defaultdict(list, {"z": X, "a": [Y]}),
    "partial": fg.tree.Partial(max, X),
    "numbers": (1.5, 2, True, np.float32(1), np.int8(3), np.float64(0.1), X),
    "numpy": [np.arange(3.0), np.ones((2, 2), np.int32), np.zeros((0, 2), np.float32)],
    "scalars": fnp.float32(2.0) + fnp.array(1.0),
    "weak": fnp.add(1.0, 2.0),
    "bytes": (fnp.ones(3, "bfloat16"), fnp.ones(2, bool), fnp.ones(2, "complex64")),
}


def check_same(a, b):
    fg.tree.check_same_structure(a, b)
    for x, y in zip(fg.tree.leaves(a), fg.tree.leaves(b), strict=True):
        assert type(x) is type(y) is Array
        assert x.aval == y.aval
        assert x.weak_type == y.weak_type
        assert x._value.dtype is y._value.dtype
        assert np.array_equal(np.asarray(x), np.asarray(y))
        assert not x.is_deleted()
        assert x._value.flags.owndata


@pytest.mark.parametrize("name", TREES)
def test_results_are_those_of_python(name, count):
    f = fg.jit(lambda t: (t, fg.tree.map(lambda x: fnp.multiply(x, x), t)))
    first = f(TREES[name])
    assert count["python"] == 1
    second = f(TREES[name])
    assert count["python"] == 1, "the second call is direct"
    check_same(first, second)
    assert repr(fg.tree.structure(first)) == repr(fg.tree.structure(second))


def test_order_of_keys(count):
    f = fg.jit(lambda t, **rest: (t["a"] - t["b"], rest["z"] - rest["y"]))
    f({"a": X, "b": X + 1}, y=X, z=X)
    out = f({"b": X, "a": X + 3}, z=X + 5, y=X)
    assert count["python"] == 1
    assert out[0][0] == 3
    assert out[1][0] == 5


@pytest.mark.parametrize(
    "other",
    [
        {"a": X},
        {"a": X, "b": X, "c": X},
        {"a": X, "c": X},
        {"a": X, Odd("b"): X},
        {"a": X, "b": fnp.ones(5)},
        {"a": X, "b": fnp.ones(4, "int32")},
        {"a": X, "b": fnp.ones((4, 1))},
        {"a": X, "b": fnp.add(1.0, 0.0)},
        {"a": X, "b": [X]},
        {"a": X, "b": None},
        {"a": X, "b": (X,)},
        collections.OrderedDict(a=X, b=X),
        [X, X],
        X,
        np.arange(4.0),
        1.0,
    ],
    ids=str,
)
def test_other_arguments_go_by_python(other, count):
    f = fg.jit(lambda t: fg.tree.map(lambda x: fnp.multiply(x, 2), t))
    f({"a": X, "b": X})
    out = f(other)
    assert count["python"] == 2
    assert fg.tree.structure(out) == fg.tree.structure(other)
    want = fg.tree.map(lambda x: fnp.multiply(x, 2), other)
    check_same(out, want)
    check_same(f(other), want)


def test_wrong_numbers_of_arguments(count):
    f = fg.jit(lambda x, y=1.0: x + y)
    f(X)
    for args, kwargs in (((), {}), ((X, X, X), {}), ((X,), {"z": X})):
        with pytest.raises(TypeError):
            f(*args, **kwargs)
    assert f(X, X)[1] == 2
    assert f(X, y=X)[1] == 2
    assert f(X)[1] == 2


def test_python_numbers_out_of_range_raise_as_before():
    f = fg.jit(lambda n: n + 1)
    assert f(3) == 4
    assert f(-4) == -3
    with pytest.raises(OverflowError):
        f(2**40)
    with pytest.raises(OverflowError):
        f(2**80)
    g = fg.jit(lambda x: x * 2)
    assert g(1.5) == 3
    assert g(float("inf")) == np.inf
    assert np.isnan(g(float("nan")))
    assert g(1e300) == np.inf
    h = fg.jit(lambda b: ~b)
    assert h(True) is not None
    assert not h(True)
    assert h(False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(8.0, dtype="float32")[::2],
        lambda: np.arange(4.0).astype(">f4"),
        lambda: np.ones((3, 4), "float32").T[:, 0],
        lambda: np.frombuffer(b"\0" * 17, np.uint8)[1:].view("float32"),
    ],
)
def test_numpy_arrays_of_odd_memory(make):
    f = fg.jit(lambda x: x + 1)
    f(np.arange(4, dtype="float32"))
    x = make()
    assert np.array_equal(np.asarray(f(x)), x + 1)


def test_results_are_no_views_of_numpy_arguments():
    f = fg.jit(lambda x: x)
    x = np.arange(3, dtype="float32")
    f(x)
    y = f(x)
    x[0] = 7
    assert y[0] == 0


def test_context(count):
    f = fg.jit(lambda x: x + fnp.zeros(()))
    f(1)
    with fg.default_dtype("float64"):
        assert f(1).dtype == "float64"
        assert f(1).dtype == "float64"
    assert f(1).dtype == "float32"
    log = fg.jit(lambda x: fnp.log(x))
    log(X - 1), log(X - 1)
    with fg.debug_nans(), pytest.raises(fg.errors.NonFiniteError):
        log(X - 1)
    seen = []
    g = fg.jit(lambda x: seen.append(x) or x)
    g(X), g(X)
    with fg.disable_jit():
        g(X)
    assert isinstance(seen[-1], Array)


def test_under_transformations():
    f = fg.jit(lambda x: x * x)
    s = fnp.array(3.0)
    f(s), f(s)
    assert fg.grad(f)(s) == 6
    assert fg.vmap(f)(X)[3] == 9
    assert fg.jit(lambda x: f(x) + 1)(s) == 10
    assert fg.jvp(f, (s,), (s,))[1] == 18


def test_deleted_arrays():
    f = fg.jit(lambda x: x + 1)
    x = fnp.ones(3)
    f(x), f(x)
    x.delete()
    with pytest.raises(fg.errors.DonatedBufferError, match="deleted"):
        f(x)


def test_captured_arrays():
    c = fnp.ones(4)
    f = fg.jit(lambda x: x + c)
    assert f(X)[1] == 2
    assert f(X)[1] == 2
    c.delete("it was needed elsewhere")
    with pytest.raises(fg.errors.DonatedBufferError, match="elsewhere"):
        f(X)


def test_static_arguments(count):
    f = fg.jit(lambda x, n, mode="a": x * n if mode == "a" else x - n,
               static_argnums=1, static_argnames="mode")  # fmt: skip
    assert f(X, 2)[1] == 2
    assert f(X, 2)[1] == 2
    assert f(X, 3)[1] == 3
    assert f(X, 2, mode="b")[1] == -1
    assert f(X, 2, mode="b")[1] == -1
    assert count["python"] == 3
    assert f(X, 2.0)[1] == 2
    assert f(X, True)[1] == 1
    assert f(X, 10**6)[1] == 10**6
    assert f(X, int("1000000"))[1] == 10**6
    for _ in range(20):
        assert f(X, float("2.5"))[1] == 2.5, "equal, but never the same object"


def test_cache_info_counts_direct_calls():
    f = fg.jit(lambda x: x + 1)
    for _ in range(5):
        f(X)
    assert f.cache_info()[:3] == (4, 1, 1)
    f.clear_cache()
    f(X)
    assert f.cache_info()[:3] == (0, 1, 1)


# ---- donation


def test_donated_memory_is_taken_over(count):
    f = fg.jit(lambda x, y: x + y, donate_argnums=0)
    f(fnp.ones(4), X)
    x = fnp.ones(4)
    at = x._value.ctypes.data
    y = f(x, X)
    assert count["python"] == 1
    assert y._value.ctypes.data == at
    assert x.is_deleted()
    assert not X.is_deleted()
    assert x.shape == (4,)
    assert x.dtype == "float32"
    assert "deleted" in repr(x)
    with pytest.raises(fg.errors.DonatedBufferError, match=r"argument x was donated to jit"):
        x + 1


def test_donated_memory_that_others_hold_is_left_alone():
    f = fg.jit(lambda x, y: x + y, donate_argnums=0)
    f(fnp.ones(4), X)
    x = fnp.ones(4)
    view = np.asarray(x)
    y = f(x, X)
    assert x.is_deleted()
    assert np.array_equal(view, np.ones(4))
    assert y[3] == 4
    z = fnp.ones(4)
    assert f(z, z)[0] == 2
    assert z.is_deleted()
    given = np.ones(4, "float32")
    for _ in range(3):
        f(given, X)
        assert np.array_equal(given, np.ones(4))


def test_donated_and_without_use():
    f = fg.jit(lambda x: fnp.sum(x), donate_argnums=0)
    for _ in range(3):
        x = fnp.ones((3, 3))
        assert f(x) == 9
        assert x.is_deleted()


def test_a_training_loop_with_donation(count):
    @fg.jit
    def make():
        return {"w": fnp.ones((8, 8)), "b": [fnp.zeros(8), None], "n": fnp.zeros((), "int32")}

    def update(state, x):
        new = fg.tree.map(lambda a: a + 1, state)
        return new, fnp.sum(x @ state["w"])

    step, plain = fg.jit(update, donate_argnums=0), fg.jit(update)
    a, b = make(), make()
    for _ in range(6):
        a, loss = step(a, fnp.ones((2, 8)))
        b, want = plain(b, fnp.ones((2, 8)))
        assert loss == want
    check_same(a, b)
    assert count["python"] <= 4


# ---- errors and Python code underneath


def test_errors_of_callbacks():
    def fail(x):
        if x > 2:
            raise KeyError("so it is")
        return x

    f = fg.jit(lambda x: fg.pure_callback(fail, fg.ShapeDtypeStruct((), "float32"), x) + 1)
    assert f(fnp.array(1.0)) == 2
    assert f(fnp.array(2.0)) == 3
    for _ in range(3):
        with pytest.raises(KeyError, match="so it is"):
            f(fnp.array(3.0))
    assert f(fnp.array(2.0)) == 3


def test_a_node_whose_flattening_fails_or_interferes():
    class Node:
        def __init__(self, children, data=0, act=None):
            self.children, self.data, self.act = children, data, act

    def flatten(node):
        if node.act is not None:
            node.act()
        return node.children, node.data

    fg.tree.register_pytree_node(Node, flatten, lambda data, xs: Node(tuple(xs), data))
    f = fg.jit(lambda t: fg.tree.leaves(t))
    assert len(f([Node((X, Y)), X])) == 3
    assert len(f([Node((X, Y)), X])) == 3
    assert len(f([Node((X, Y), data=1), X])) == 3
    assert len(f([Node((X,)), X])) == 2

    def fail():
        raise ZeroDivisionError("by the node")

    with pytest.raises(ZeroDivisionError, match="by the node"):
        f([Node((X, Y), act=fail), X])
    items = [Node((X, Y)), fnp.ones(4)]
    items[0].act = items.clear
    assert len(f(items)) in (0, 3), "native code looked again after the node had acted"


# ---- memory


def test_reference_counts():
    f = fg.jit(lambda t, s: ({"k": t["a"] + s, "n": None}, [t["b"] * 2]))
    args = {"a": fnp.ones(3), "b": fnp.ones((2, 2))}, 2.0
    more = {**args[0], "c": X}, 2.0
    value = args[0]["a"]._value
    kept = [args[0], *args[0].values(), value, value.dtype, "k", None, True, False, "c"]
    kept += [NotImplemented, np.ndarray, Array, fg.core.context.ROOT]

    def use():
        for _ in range(100):
            f(*args)
            f(*more)  # the second entry
            with pytest.raises(TypeError):
                f(args[0])

    use()
    gc.collect()  # what other tests left behind holds dtypes, too
    before = [sys.getrefcount(x) for x in [*kept, f._direct, f._entries[0].words]]
    use()
    after = [sys.getrefcount(x) for x in [*kept, f._direct, f._entries[0].words]]
    grown = [b - a for a, b in zip(before, after, strict=True)]
    assert max(map(abs, grown)) < 20, grown


def test_results_die():
    f = fg.jit(lambda t: [t["a"] + 1, {"b": t["a"] * 2}])
    f({"a": X})
    out = f({"a": X})
    values = [weakref.ref(out[0]), weakref.ref(out[1]["b"])]
    assert all(sys.getrefcount(v()) == 2 for v in values)
    del out
    assert [v() for v in values] == [None, None]
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(500):
        f({"a": X})
    gc.collect()
    assert len(gc.get_objects()) - before < 50


def test_arguments_die():
    f = fg.jit(lambda x: x + 1)
    f(X)
    x = fnp.ones(4)
    gone = weakref.ref(x)
    f(x)
    del x
    assert gone() is None


def test_large_results():
    f = fg.jit(lambda x: (x + 1, x * 2))
    x = fnp.ones((300, 300))
    f(x)
    a, b = f(x)
    assert np.all(np.asarray(a) == 2)
    assert np.all(np.asarray(b) == 2)
    assert get_handler_name(a._value) == get_handler_name(b._value) == "funcgrad"
    assert get_handler_name(np.empty(300000)) == "default_allocator"


def test_threads():
    f = fg.jit(lambda t: {"y": t["x"] @ t["x"], "n": t["n"] + 1})
    x = {"x": fnp.eye(64), "n": fnp.zeros((), "int32")}
    faults = []

    def work(i):
        try:
            mine = {"x": x["x"] * i, "n": x["n"]}
            for _ in range(50):
                out = f(mine)
                assert float(out["y"][0, 0]) == i * i
                assert int(out["n"]) == 1
                if _ % 20 == i:
                    f.clear_cache()
        except BaseException as e:
            faults.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not faults


def test_many_kinds_of_calls():
    f = fg.jit(lambda x: x + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are many
        for n in [*range(1, 40), *range(1, 40)]:
            assert f(fnp.ones(n)).shape == (n,)
    assert len(f._entries) <= 16


def test_more_leaves_than_native_code_takes(count):
    f = fg.jit(lambda t: t[0] + 1)
    many = [X] * (direct.MAX_LEAVES + 1)
    f(many), f(many)
    assert count["python"] == 2
