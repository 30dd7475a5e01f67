"""Features by name against dictionaries of lists, from Arrow columns, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import tree
from funcgrad.errors import ArgumentError, DTypeError, ShapeError
from funcgrad.io.checkpoints import checkpoint
from funcgrad.recsys import JaggedTensor, KeyedJaggedTensor

BAG = st.lists(st.integers(0, 9), max_size=4)
FEATURES = st.integers(0, 4).flatmap(
    lambda n: st.dictionaries(
        st.sampled_from("abcde"), st.lists(BAG, min_size=n, max_size=n), max_size=4
    )
)
LISTS = {"a": [[3], [1, 2]], "b": [[], [7]], "c": [[4, 4, 4], []]}


def lists(kjt):
    return {k: x.to_lists() for k, x in kjt.features().items()}


@given(wanted=FEATURES, spare=st.integers(0, 3))
def test_keyed_is_its_lists(wanted, spare):
    room = {k: sum(map(len, x)) + spare for k, x in wanted.items()}
    kjt = KeyedJaggedTensor.from_lists(wanted, capacity=room)
    assert lists(kjt) == wanted
    values, lengths = kjt.packed()
    assert values.tolist() == [i for x in wanted.values() for bag in x for i in bag]
    assert lists(KeyedJaggedTensor(kjt.keys, values, lengths)) == wanted
    back = tuple(reversed(kjt.keys))
    assert lists(kjt.permute(back)) == {k: wanted[k] for k in back}
    cut = len(wanted) // 2
    parts = kjt.split([cut, len(wanted) - cut])
    assert lists(KeyedJaggedTensor.concat(parts)) == wanted
    assert lists(kjt[1:3]) == {k: x[1:3] for k, x in wanted.items()}


def test_batches_of_different_sizes():
    uneven = {"a": [[1], [2, 3]], "b": [[4]]}
    kjt = KeyedJaggedTensor.from_lists(uneven)
    assert kjt.batches == (2, 1)
    assert lists(kjt.permute("ba")) == {"b": [[4]], "a": [[1], [2, 3]]}
    with pytest.raises(ArgumentError, match="batches of \\(2, 1\\); slice them one by one"):
        kjt[:1]


def test_weights_and_offsets():
    weights = {"a": [[0.5], [1, 2]], "b": [[], [3]], "c": [[1, 2, 3], []]}
    kjt = KeyedJaggedTensor.from_lists(LISTS, weights, capacity=4)
    assert kjt["c"].weights.tolist() == [1, 2, 3, 0]
    assert kjt.permute("ca")["a"].weights.tolist() == [0.5, 1, 2, 0]
    again = KeyedJaggedTensor.from_offsets("ab", [1, 2, 3], [0, 1, 3, 3, 3], [1.0, 2.0, 3.0])
    assert lists(again) == {"a": [[1], [2, 3]], "b": [[], []]}


def test_saved_in_checkpoints(tmp_path):
    kjt = KeyedJaggedTensor.from_lists(LISTS, capacity=4)
    checkpoint.save(tmp_path / "batch", {"batch": kjt})
    like = {"batch": tree.map(fnp.zeros_like, kjt)}
    assert lists(checkpoint.load(tmp_path / "batch", like)["batch"]) == LISTS


def test_compiled_mapped_and_put():
    kjt = KeyedJaggedTensor.from_lists(LISTS, capacity=4)
    assert lists(fg.jit(lambda x: x.permute("cb"))(kjt)) == {k: LISTS[k] for k in "cb"}
    assert lists(fg.jit(lambda x: x[1:])(kjt)) == {k: x[1:] for k, x in LISTS.items()}
    assert lists(fg.device_put(kjt, fg.devices()[0])) == LISTS
    two = tree.map(lambda x: fnp.stack([x, x]), kjt)
    dense = fg.vmap(lambda x: x.to_dense(3))(two)
    np.testing.assert_array_equal(dense["c"][1], [[4, 4, 4], [0, 0, 0]])
    weighted = KeyedJaggedTensor(["a"], [1, 2], [2], [1.0, 2.0])
    grads = fg.grad(lambda w: fnp.sum(weighted.__class__(["a"], [1, 2], [2], w)["a"].weights ** 2))
    np.testing.assert_allclose(grads(weighted.weights), [2, 4])
    names = [tree.keystr(p) for p, _ in tree.leaves_with_path(kjt)]
    assert names == [".values", ".lengths"]
    assert fg.jit(lambda x: repr(x) and x.values)(kjt).shape == (12,)
    assert "a: ? of 4 values in 2 bags" in repr(tree.map(lambda x: None, kjt))


@pytest.mark.parametrize("kind", ["list", "large_list", "chunked", "sliced", "fixed"])
def test_arrow_columns(kind):
    pa = pytest.importorskip("pyarrow")
    rows = [[1, 2], [], [3], [4, 5, 6]]
    if kind == "fixed":
        rows = [[1, 2], [3, 4], [5, 6], [7, 8]]
        column = pa.array(rows, pa.list_(pa.int64(), 2))
    else:
        column = pa.array(rows, (pa.large_list if kind == "large_list" else pa.list_)(pa.int64()))
    if kind == "chunked":
        column = pa.chunked_array([column.slice(0, 1), column.slice(1)])
    if kind == "sliced":
        column, rows = column.slice(1, 2), rows[1:3]
    table = pa.table({"ids": column, "user": pa.array(range(len(rows)))})
    kjt = KeyedJaggedTensor.from_columns(table)
    assert lists(kjt) == {"ids": rows, "user": [[i] for i in range(len(rows))]}
    assert KeyedJaggedTensor.from_columns(table, ["user"], capacity=9).capacities == (9,)
    assert KeyedJaggedTensor.from_columns(table.to_batches()[0], ["user"]).keys == ("user",)


def test_arrow_columns_with_holes():
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"ids": pa.array([[1], None, [2]], pa.list_(pa.int64()))})
    assert lists(KeyedJaggedTensor.from_columns(table)) == {"ids": [[1], [], [2]]}
    empty = pa.table({"ids": pa.chunked_array([], pa.list_(pa.int64()))})
    assert lists(KeyedJaggedTensor.from_columns(empty)) == {"ids": []}
    holes = pa.table({"ids": pa.array([[1], [2, None]], pa.list_(pa.int64()))})
    with pytest.raises(ArgumentError, match="feature 'ids': value 2 is missing"):
        KeyedJaggedTensor.from_columns(holes)
    with pytest.raises(DTypeError, match="feature 'x': need integers"):
        KeyedJaggedTensor.from_columns(pa.table({"x": [["u"]]}))
    big = pa.table({"x": [[1], [1 << 40]]})
    with pytest.raises(ArgumentError, match="feature 'x': 1099511627776 at 1 doesn't fit int32"):
        KeyedJaggedTensor.from_columns(big)
    assert KeyedJaggedTensor.from_columns(big, dtype="int64").values[1] == 1 << 40


K = KeyedJaggedTensor


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: K("ab", [1], [1]), ShapeError, "1 lengths can't be shared among 2"),
        (lambda: K("aa", [1], [1, 0]), ArgumentError, "'a' comes twice"),
        (lambda: K([1], [1], [1]), ArgumentError, "keys must be strings, got 1"),
        (lambda: K("a", [1.0], [1]), DTypeError, "values must be integers"),
        (lambda: K("a", [1, 2], [1]), ArgumentError, "there are 2"),
        (lambda: K("ab", [1, 2], [3, -1]), ArgumentError, "'b': the length of bag 0 is -1"),
        (lambda: K("ab", [1, 2], [1, 1, -1, 1]), ArgumentError, "'b': the length of bag 0 is -1"),
        (lambda: K("a", [1], [2], capacities=[1]), ArgumentError, "bag 0 ends behind 2"),
        (lambda: K("a", [1, 2], [1], capacities=[3]), ShapeError, "capacities \\(3,\\)"),
        (lambda: K("a", [1], [1], batches=[2]), ShapeError, "batches \\(2,\\)"),
        (lambda: K.from_lists({"a": [[1, 2]]}, capacity=1), ArgumentError, "feature 'a': there"),
        (lambda: K.from_lists({"a": [[1]]}, capacity={"b": 1}), ArgumentError, "capacity has"),
        (lambda: K.from_lists({"a": [[1]]}, {"b": [[1.0]]}), ArgumentError, "weights has"),
        (lambda: K.from_lists({"a": [[1]]}, {"a": [[]]}), ArgumentError, "feature 'a': weights"),
        (lambda: K.from_lists({"a": [[1.5]]}), DTypeError, "feature 'a': need integers"),
        (lambda: K.from_lists(LISTS)["d"], ArgumentError, "no feature 'd' among"),
        (lambda: K.from_lists(LISTS)[0], ArgumentError, "a slice of the batch"),
        (lambda: K.from_lists(LISTS).permute("aa"), ArgumentError, "'a' comes twice"),
        (lambda: K.from_lists(LISTS).split([1, 1]), ArgumentError, "must share 3 features"),
        (lambda: K.concat([K.from_lists(LISTS)] * 2), ArgumentError, "'a' comes twice"),
        (lambda: K.from_columns({"a": ([1], [0, 2])}), ArgumentError, "there are 1 values"),
        (lambda: K.from_columns({"a": ([1], [1, 0])}), ArgumentError, "decrease from 1 at 0"),
        (lambda: K.from_columns({"a": ([1], 0)}), ArgumentError, "offsets must be"),
        (lambda: K.from_columns({"a": [[1]]}), ArgumentError, "one axis"),
        (lambda: K.from_columns({"a": [1]}, ["b"]), ArgumentError, "no column 'b'"),
        (
            lambda: K.from_features(
                {"a": JaggedTensor([1], [1]), "b": JaggedTensor([1], [1], [1])}
            ),
            ArgumentError,
            "feature 'a' has no weights",
        ),
        (
            lambda: fg.jit(lambda v, n: K("a", v, n))(np.arange(2), np.array([2])),
            ArgumentError,
            "give capacities=",
        ),
    ],
)
def test_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()
