"""`tree_util`: JAX's names over `tree`, and what only it has."""

import dataclasses
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from funcgrad import tree, tree_util

TREES = st.recursive(
    st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)


def test_names_of_tree():
    value = {"b": [1, 2], "a": (3,)}
    assert tree_util.tree_leaves(value) == [3, 1, 2]
    assert tree_util.tree_map(operator.neg, value) == {"b": [-1, -2], "a": (-3,)}
    assert tree_util.tree_reduce(operator.add, value) == 6
    leaves, treedef = tree_util.tree_flatten(value)
    assert tree_util.tree_unflatten(treedef, leaves) == value
    assert tree_util.tree_all([True, [1]])
    assert [tree_util.keystr(p) for p, _ in tree_util.tree_leaves_with_path(value)] == [
        "['a'][0]", "['b'][0]", "['b'][1]",
    ]  # fmt: skip
    assert tree_util.Partial is tree.Partial


@given(TREES, TREES)
def test_compose(outer, inner):
    composed = tree.structure(outer).compose(tree.structure(inner))
    assert composed == tree.structure(tree.map(lambda _: inner, outer))


@given(TREES)
def test_one_level(value):
    if value is None or isinstance(value, (list, dict)):
        children, data = tree_util.flatten_one_level(value)
        keyed, same = tree_util.flatten_one_level_with_keys(value)
        assert [child for _, child in keyed] == children
        assert data == same
        assert tree_util.is_tree_node(type(value))
    else:
        assert not tree_util.is_tree_node(type(value))
        for function in (tree_util.flatten_one_level, tree_util.flatten_one_level_with_keys):
            with pytest.raises(
                ValueError, match=rf"{function.__name__}: .*type int, which is a leaf"
            ):
                function(value)


@given(st.lists(TREES, max_size=4))
def test_treedef_tuple(values):
    defs = [tree.structure(v) for v in values]
    made = tree_util.treedef_tuple(defs)
    assert made == tree.structure(tuple(values))
    assert tree_util.treedef_children(made) == defs
    assert not tree_util.treedef_is_leaf(made)


@pytest.mark.parametrize("n", range(1, 12))
def test_associative_reduction_keeps_the_order_and_is_shallow(n):
    def join(x, y):
        return (x[0] + y[0], 1 + max(x[1], y[1]))

    text, depth = tree.reduce_associative(
        join, [(chr(97 + i), 0) for i in range(n)], is_leaf=lambda x: isinstance(x, tuple)
    )
    assert text == "".join(chr(97 + i) for i in range(n))
    assert depth == (n - 1).bit_length()


def test_associative_reduction_of_nothing():
    assert tree.reduce_associative(operator.add, [], identity=0) == 0
    with pytest.raises(TypeError, match="reduce_associative: a tree without leaves needs identity"):
        tree.reduce_associative(operator.add, [])


def test_static_classes_and_fields():
    @tree.register_static
    class Mode(str):
        __slots__ = ()

    assert tree.leaves([Mode("train"), 2]) == [2]
    assert tree.map(lambda x: x + 1, [Mode("train"), 2]) == [Mode("train"), 3]
    assert tree.structure(Mode("a")) != tree.structure(Mode("b"))

    @tree.register_dataclass
    @dataclasses.dataclass
    class Op:
        x: object
        name: str = tree.static(default="add", metadata={"help": "which"})

    assert tree.leaves(Op(1)) == [1]
    assert dataclasses.fields(Op)[1].metadata == {"help": "which", "static": True}


def test_classes_with_keys_need_the_method():
    with pytest.raises(TypeError, match="Plain needs a method tree_flatten_with_keys"):

        @tree_util.register_pytree_with_keys_class
        class Plain:
            pass


def test_all_leaves():
    assert tree_util.all_leaves([1, "a", 2.0])
    assert not tree_util.all_leaves([1, None])
    assert tree_util.all_leaves([[1]], is_leaf=lambda x: isinstance(x, list))
