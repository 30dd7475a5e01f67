"""Pytrees: round trips, order, printing, registration, and the words of each error."""

import collections
import copy
import dataclasses
import functools
import gc
import pickle
import re
import typing
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from funcgrad import tree
from funcgrad.errors import TreeError
from funcgrad.tree import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey, keystr, kinds


class Point(typing.NamedTuple):
    x: object
    y: object


@tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: object
    b: object
    width: object = dataclasses.field(default=3, metadata={"static": True})


@tree.register_pytree_node_class
class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second

    def tree_flatten(self):
        return (self.first, self.second), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)

    def __eq__(self, other):
        return type(other) is Pair and vars(self) == vars(other)

    __hash__ = None


def containers(child):
    keys = st.text("abcxyz", max_size=3)
    dicts = st.dictionaries(keys, child, max_size=4)
    return st.one_of(
        st.lists(child, max_size=4),
        st.lists(child, max_size=4).map(tuple),
        dicts,
        dicts.map(lambda d: collections.OrderedDict(d)),
        dicts.map(lambda d: collections.defaultdict(int, d)),
        st.dictionaries(st.integers(-5, 5), child, max_size=3),
        st.builds(Point, child, child),
        st.builds(Layer, child, child, st.sampled_from([1, True, 1.0, "s"])),
        st.builds(Pair, child, child),
    )


scalars = st.one_of(st.integers(), st.text(max_size=2), st.booleans())
trees = st.recursive(st.one_of(st.none(), scalars), containers, max_leaves=12)


@given(trees)
def test_unflatten_inverts_flatten(t):
    flat, treedef = tree.flatten(t)
    back = tree.unflatten(treedef, flat)
    assert back == t
    assert repr(tree.structure(back)) == repr(treedef)  # 1, True and 1.0 stay what they are
    assert treedef.num_leaves == len(flat) == len(tree.leaves(t))


@given(trees)
def test_maps(t):
    assert tree.map(lambda x: x, t) == t
    assert tree.map(lambda x, y: (x, y)[0], t, t) == t
    doubled = tree.map(lambda x: (x, x), t)
    assert tree.map(lambda x, pair: pair[1], t, doubled) == t
    assert tree.map_with_path(lambda path, x, y: y, t, t) == t
    assert tree.reduce(lambda n, _: n + 1, t, 0) == tree.structure(t).num_leaves


@given(trees)
def test_paths_are_unique_and_need_no_tree(t):
    pairs, treedef = tree.flatten_with_path(t)
    paths = [path for path, _ in pairs]
    assert len(set(paths)) == len(paths)
    assert [leaf for _, leaf in pairs] == tree.leaves(t)
    assert treedef.paths() == paths


@given(trees, trees)
def test_structures_compare_by_what_they_print(s, t):
    a, b = tree.structure(s), tree.structure(t)
    if a == b:
        assert hash(a) == hash(b)
        tree.check_same_structure(s, t)
    else:
        with pytest.raises(TreeError, match="the trees differ at"):
            tree.check_same_structure(s, t)
    assert (repr(a) != repr(b)) or a == b


@given(trees)
def test_structures_survive_pickling_and_forgetting(t):
    treedef = tree.structure(t)
    assert pickle.loads(pickle.dumps(treedef)) == treedef
    assert copy.deepcopy(treedef) == treedef
    for table in kinds._tables:
        table.clear()
    again = tree.structure(t)
    assert again == treedef
    assert hash(again) == hash(treedef)


@given(trees)
def test_children_sum_up(t):
    treedef = tree.structure(t)
    children = treedef.children()
    if treedef.node_data() is None:
        assert (children, treedef.num_nodes, treedef.num_leaves) == ([], 1, 1)
    else:
        assert treedef.num_leaves == sum(c.num_leaves for c in children)
        assert treedef.num_nodes == 1 + sum(c.num_nodes for c in children)


@given(trees, st.data())
def test_broadcast_spreads_a_prefix(t, data):
    prefix = tree.map(lambda _: 0, t, is_leaf=lambda x: x is not t and data.draw(st.booleans()))
    spread = tree.broadcast(prefix, t)
    assert tree.structure(spread) == tree.structure(t)
    assert set(tree.leaves(spread)) <= {0}


def test_order_and_kinds():
    t = {"b": [1, (2,)], "a": collections.OrderedDict(z=3, y=4), "c": None}
    assert tree.leaves(t) == [3, 4, 1, 2]
    assert [*tree.map(lambda x: x, {"b": 1, "a": 2})] == ["a", "b"]
    assert tree.leaves(collections.defaultdict(list, b=1, a=2)) == [2, 1]
    point = tree.map(lambda x: x + 1, Point(1, 2))
    assert type(point) is Point
    assert point == (2, 3)
    assert tree.leaves(None) == []
    assert tree.leaves(None, is_leaf=lambda x: x is None) == [None]
    assert tree.leaves([(1, 2), 3], is_leaf=lambda x: isinstance(x, tuple)) == [(1, 2), 3]


@pytest.mark.parametrize("base", [dict, list, tuple, collections.OrderedDict])
def test_unregistered_subclasses_are_leaves(base):
    value = type("Sub", (base,), {})()
    assert tree.leaves([value])[0] is value


@pytest.mark.parametrize(
    ("t", "text"),
    [
        (1, "*"),
        (None, "None"),
        ((), "()"),
        ((1,), "(*,)"),
        ({"b": [1, 2], "a": None}, "{'a': None, 'b': [*, *]}"),
        (Point(1, 2), "CustomNode(namedtuple[Point], [*, *])"),
        (collections.OrderedDict(b=1), "CustomNode(OrderedDict[('b',)], [*])"),
        (
            collections.defaultdict(int, b=1, a=2),
            "CustomNode(defaultdict[(<class 'int'>, ('a', 'b'))], [*, *])",
        ),
        (Layer(1, [2]), "CustomNode(Layer[(3,)], [*, [*]])"),
        (Pair(1, ()), "CustomNode(Pair[None], [*, ()])"),
        (tree.Partial(max, 1, key=2), f"CustomNode(Partial[{max}], [(*,), {{'key': *}}])"),
    ],
)
def test_prints_as_jax(t, text):
    assert str(tree.structure(t)) == f"PyTreeDef({text})"


def test_keys_print_as_jax():
    t = {"a": [Layer(w=1, b=Point(2, 3))], "p": Pair(4, 5)}
    paths = [keystr(path) for path, _ in tree.leaves_with_path(t)]
    assert paths == [
        "['a'][0].w", "['a'][0].b.x", "['a'][0].b.y",
        "['p'][<flat index 0>]", "['p'][<flat index 1>]",
    ]  # fmt: skip
    path = (DictKey("a"), SequenceKey(0), GetAttrKey("w"), FlattenedIndexKey(2))
    assert keystr(path, simple=True, separator="/") == "a/0/w/2"
    assert keystr(("own",), simple=True) == keystr(("own",)) == "own"
    assert repr(path[0]) == "DictKey(key='a')"


class SameStep(DictKey):
    __slots__ = ()


class WiderStep(DictKey):
    __slots__ = ("of",)

    def __init__(self, key, of):
        super().__init__(key)
        object.__setattr__(self, "of", of)


def test_steps_of_own_classes():
    a, b = SameStep("a"), WiderStep("a", 1)
    assert repr(a) == "SameStep(key='a')"
    assert repr(b) == "WiderStep(key='a', of=1)"
    for step in (a, b):
        assert pickle.loads(pickle.dumps(step)) == step
        assert hash(step) == hash(copy.copy(step))
    assert a != DictKey("a")
    assert b not in (WiderStep("b", 1), WiderStep("a", 2))
    with pytest.raises(AttributeError, match="key of a SameStep can't be deleted"):
        del a.key
    match b:
        case WiderStep(key, of):
            assert (key, of) == ("a", 1)


def test_equal_trees_share_one_structure():
    assert tree.structure({"a": [1, (2,)]}) is tree.structure({"a": [3, (4,)]})
    layers = tree.structure([Layer(1, 2), Layer(3, 4)])
    assert layers is tree.structure([Layer(1, 2), Layer(3, 4)])
    assert layers != tree.structure([Layer(1, 2, width=4), Layer(3, 4)])
    assert tree.structure((1, 2)) != tree.structure([1, 2])
    assert tree.structure(()) != "()"


def test_equal_metadata_of_another_type_is_not_mixed_up():
    for width in (1, True, 1.0):
        flat, treedef = tree.flatten([Layer(0, 0, width)])
        assert type(treedef.unflatten(flat)[0].width) is type(width)
    for key in (1, True, 1.0):
        assert [*map(type, tree.map(str, {key: 0}))] == [type(key)]


def test_structures_do_not_keep_closures_alive():
    class Held:
        def __call__(self):
            return 0

    func = Held()
    alive = weakref.ref(func)
    tree.structure([tree.Partial(func, 1)])
    del func
    gc.collect()
    assert alive() is None


def test_remembered_structures_are_bounded():
    for i in range(kinds._MAX_REMEMBERED // 1000):
        tree.structure([(i,)] * 990 + [i])
        assert sum(map(len, kinds._tables)) < kinds._MAX_REMEMBERED // 8


def test_folds():
    assert tree.reduce(lambda a, b: a + b, {"b": "x", "a": "y"}) == "yx"
    assert tree.reduce(lambda a, b: a + b, [1, 2], 10) == 13
    assert tree.all({"a": 1}) is True
    assert tree.all([1, (0,)]) is False
    assert tree.all(()) is True
    with pytest.raises(TypeError):
        tree.reduce(lambda a, b: a, [])


def test_transpose():
    outer = tree.structure({"a": 0, "b": 0})
    t = {"a": (1, [2]), "b": (3, [4])}
    turned = ({"a": 1, "b": 3}, [{"a": 2, "b": 4}])
    assert tree.transpose(outer, tree.structure((0, [0])), t) == turned
    assert tree.transpose(outer, None, t) == turned
    with pytest.raises(TreeError, match=r"transpose: .* the inner structure has a leaf, the sub"):
        tree.transpose(outer, tree.structure(0), t)
    with pytest.raises(TreeError, match="so `inner` is needed"):
        tree.transpose(tree.structure([]), None, [])
    ragged = {"a": (1, 2), "b": (3, [4])}
    with pytest.raises(TreeError, match=r"differ at \[1\]: .*leaf, the subtree at \['b'\] has a l"):
        tree.transpose(outer, None, ragged)


def test_broadcast_and_axes():
    treedef = tree.structure(({"a": 0, "b": [0, 0]}, 0, None))
    assert tree.flatten_axes("in_axes", treedef, 2) == [2, 2, 2, 2]
    assert tree.flatten_axes("in_axes", treedef, None) == [None] * 4
    assert tree.flatten_axes("in_axes", treedef, ({"a": 0, "b": None}, 1, None)) == [
        0, None, None, 1,
    ]  # fmt: skip
    assert tree.broadcast([1, None], [{"a": 0}, None]) == [{"a": 1}, None]
    with pytest.raises(TreeError, match=r"^in_axes must be a prefix .* at \[0\] in_axes has"):
        tree.flatten_axes("in_axes", treedef, ({"a": 0}, 1, None))
    with pytest.raises(TreeError, match="at the root out_axes has a list of length 3, the tree"):
        tree.flatten_axes("out_axes", treedef, [0, 0, 0])
    with pytest.raises(TreeError, match=r"at \[1\] in_axes has a tuple of length 1, .* a leaf"):
        tree.flatten_axes("in_axes", treedef, (0, (0,), 0))
    with pytest.raises(TreeError, match=r"tree.broadcast: .* at \[0\]"):
        tree.broadcast([[1]], [2])


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (1, [2], "differ at the root: A has a leaf of type int, B has a list of length 1"),
        ({"w": [1, 2]}, {"w": (1, 2)}, "at ['w']: A has a list of length 2, B has a tuple of"),
        ({"w": [1, 2]}, {"w": [1]}, "at ['w']: A has a list of length 2, B has a list of length 1"),
        ([0, {"x": 1, "y": 2}], [0, {"y": 2, "z": 3}], "keys ['y', 'z']; A lacks 'z'; B lacks 'x'"),
        ([0, 1, None], [0, 1, 2.5], "at [2]: A has None, B has a leaf of type float; None is a n"),
        (
            [[1, 2], "s"],
            [[1, 2], ()],
            "at [1]: A has a leaf of type str, B has a tuple of length 0",
        ),
        (Point(1, 2), Point(1, (2,)), "at .y: A has a leaf of type int, B has a tuple of length 1"),
        (Point(1, 2), (1, 2), "A has a Point with 2 children, B has a tuple of length 2"),
        (Layer(1, 2), Layer(1, 2, 4), "2 children and metadata (3,), B has a Layer with 2 childr"),
        (
            collections.defaultdict(int, a=1),
            collections.defaultdict(int),
            "A has a defaultdict with keys ['a'], B has a defaultdict with keys []; B lacks 'a'",
        ),
    ],
)
def test_words_about_differences(a, b, words):
    with pytest.raises(TreeError) as e:
        tree.check_same_structure(a, b, what_a="A", what_b="B")
    assert words in str(e.value)
    with pytest.raises(ValueError, match="differ"):
        tree.check_same_structure(tree.structure(a), tree.structure(b))


def test_words_of_map_and_unflatten():
    with pytest.raises(TreeError, match=r"^tree.map: the trees differ at \['a'\]: the first tree"):
        tree.map(max, {"a": (1, 2)}, {"a": 1})
    with pytest.raises(TreeError, match=r"rest\[1\] has a tuple of length 3"):
        tree.map(max, (1, 2), (1, 2), (1, 2, 3))
    with pytest.raises(TreeError, match=r"tree.map_with_path: .* the second has a dict"):
        tree.map_with_path(max, [1], {"a": 1})
    with pytest.raises(TreeError, match=r"the prefix has a list of length 1, the tree has a leaf"):
        tree.structure([0]).flatten_up_to(3)
    with pytest.raises(TreeError, match=r"PyTreeDef\(\[\*, \*\]\) has 2 leaves, 3 were given"):
        tree.structure([0, 0]).unflatten(iter("abc"))


def test_unsortable_keys_name_path_and_types():
    with pytest.raises(TreeError, match=r"dict at \['a'\]\[1\] can't be sorted.*int, str"):
        tree.flatten({"a": [0, {1: 2, "b": 3}]})
    with pytest.raises(TreeError, match="dict at the root can't"):
        tree.map(max, {"a": 1}, {"a": 1, 2: 3})
    assert tree.leaves([{1: 2, "b": 3}], is_leaf=lambda x: isinstance(x, dict)) == [{1: 2, "b": 3}]


def test_array_metadata_is_refused_where_it_matters():
    layer = Layer(1, 2, width=np.zeros(2))
    flat, treedef = tree.flatten([layer])
    assert treedef.unflatten(flat)[0].width is layer.width
    with pytest.raises(TypeError, match=r"metadata of a Layer node must be hashable.*data field"):
        hash(treedef)
    with pytest.raises(TreeError, match="metadata of two Layer nodes can't be compared"):
        tree.check_same_structure(layer, Layer(1, 2, width=np.ones(2)))


def test_registration():
    class Box:
        def __init__(self, x):
            if type(x) is object:
                raise ValueError("no placeholders")
            self.x = x

    box = Box(1)
    assert tree.leaves([box]) == [box]  # a leaf, until
    tree.register_pytree_with_keys(
        Box, lambda b: ([(GetAttrKey("x"), b.x)], None), lambda _, xs: Box(*xs)
    )
    pairs, treedef = tree.flatten_with_path([box])
    assert [(keystr(path), x) for path, x in pairs] == [("[0].x", 1)]
    assert keystr(treedef.paths()[0]) == "[0][<flat index 0>]"
    with pytest.raises(ValueError, match="Box is already registered"):
        tree.register_pytree_node(Box, None, None)
    with pytest.raises(ValueError, match="dict is already registered"):
        tree.register_pytree_node(dict, None, None)
    with pytest.raises(TypeError, match="only a class can be registered"):
        tree.register_pytree_node(box, None, None)
    with pytest.raises(TypeError, match="Plain needs a method tree_flatten"):
        tree.register_pytree_node_class(type("Plain", (), {}))


def test_class_with_keys_and_its_own_named_tuple():
    @tree.register_pytree_node_class
    class Named:
        def __init__(self, x):
            self.x = x

        def tree_flatten_with_keys(self):
            return [(GetAttrKey("x"), self.x)], "meta"

        @classmethod
        def tree_unflatten(cls, data, children):
            return cls(*children)

    assert keystr(tree.leaves_with_path(Named([1]))[0][0]) == ".x[0]"
    assert tree.structure(Named(1)).node_data() == (Named, "meta")

    coordinates = collections.namedtuple("coordinates", "x y")
    assert tree.leaves(coordinates(1, 2)) == [1, 2]
    tree.register_pytree_node(coordinates, lambda c: ((c.x,), c.y), lambda y, x: coordinates(*x, y))
    assert tree.leaves(coordinates(1, 2)) == [1]


def test_register_dataclass():
    @functools.partial(tree.register_dataclass, data_fields=["b", "a"], meta_fields=[])
    @dataclasses.dataclass(frozen=True)
    class Two:
        a: object
        b: object
        total: object = dataclasses.field(init=False, default=0)

    assert tree.leaves(Two(1, 2)) == [2, 1]
    assert tree.map(lambda x: -x, Two(1, 2)) == Two(-1, -2)

    three = dataclasses.make_dataclass("Three", "xyz")

    def refuse(words, error, cls=three, **lists):
        with pytest.raises(error, match=words):
            tree.register_dataclass(cls, **lists)

    refuse("Missing fields: {'z'}", ValueError, data_fields=["x"], meta_fields=["y"])
    all_fields = ["x", "y", "z"]
    refuse("Unexpected fields: {'q'}", ValueError, data_fields=all_fields, meta_fields=["q"])
    refuse("Overlapping fields: {'x'}", ValueError, data_fields=all_fields, meta_fields=["x"])
    refuse("must both be specified.*meta_fields=None", TypeError, data_fields=["x"])
    refuse("nodetype is not a dataclass.*Plain", TypeError, cls=type("Plain", (), {}))


@pytest.mark.parametrize(
    ("wanted", "got", "words"),
    [
        ([1], (7,), "a tuple of length 1. Expected list, got (7,)."),
        ([(1,)], [7], "Expected tuple, got 7."),
        (None, [2], "Expected None, got [2]."),
        ([1, 2], [7], "List arity mismatch: 1 != 2; list: [7]."),
        ({"a": 1}, {"b": 7}, "Dict key mismatch; expected keys: ['a']; dict: {'b': 7}."),
        ([Point(1, 2)], [(1, 2)], "Expected named tuple, got (1, 2)."),
    ],
)
def test_a_prefix_that_is_none_says_what_was_expected(wanted, got, words):
    with pytest.raises(TreeError, match=re.escape(words)):
        tree.structure(wanted).flatten_up_to(got)
    with pytest.raises(TreeError, match="length 20$"):  # what is long is not repeated
        tree.structure([1]).flatten_up_to((0,) * 20)


def test_partial():
    add = tree.Partial(lambda *xs, k: (*xs, k), 1, k=2)
    assert add(5) == (1, 5, 2)
    assert [(keystr(p), x) for p, x in tree.leaves_with_path(add)] == [
        (".args[0]", 1), (".keywords['k']", 2),
    ]  # fmt: skip
    assert tree.map(lambda x: x * 10, add)(5) == (10, 5, 20)
    assert tree.leaves(tree.Partial(add, 3)) == [1, 3, 2]
    inner = functools.partial(max, 7)
    outer = tree.Partial(inner, 3)
    assert tree.leaves(outer) == [3]
    assert outer(1) == 7
    assert tree.structure(outer) == tree.structure(tree.Partial(inner, 4))


def test_agrees_with_jax():
    jtu = pytest.importorskip("jax").tree_util
    t = {"b": [1, (2, None)], "a": collections.OrderedDict(z=Point(1, 2)), "c": ()}
    flat, treedef = tree.flatten(t)
    theirs, their_def = jtu.tree_flatten(t)
    assert (flat, str(treedef), treedef.num_nodes) == (theirs, str(their_def), their_def.num_nodes)
    paths = [jtu.keystr(path) for path, _ in jtu.tree_leaves_with_path(t)]
    assert [keystr(path) for path in treedef.paths()] == paths


def test_leaves_by_their_path():
    given = {"a": [1, (2, 3)], "b": {"c": [4], "d": None}, "e": (5,)}
    ends = lambda path, x: len(path) == 2 or isinstance(x, tuple)
    pairs, treedef = tree.flatten_with_path(given, ends, is_leaf_takes_path=True)
    assert [(tree.keystr(p), x) for p, x in pairs] == [
        ("['a'][0]", 1), ("['a'][1]", (2, 3)), ("['b']['c']", [4]), ("['b']['d']", None),
        ("['e']", (5,)),
    ]  # fmt: skip
    assert treedef.unflatten([x for _, x in pairs]) == given
    assert tree.leaves_with_path(given, ends, True) == pairs
    shown = tree.map_with_path(
        lambda p, x: type(x).__name__, given, is_leaf=ends, is_leaf_takes_path=True
    )
    assert shown == {"a": ["int", "tuple"], "b": {"c": "list", "d": "NoneType"}, "e": "tuple"}
    plain = lambda x: isinstance(x, tuple)
    assert tree.leaves_with_path(given, plain) == tree.leaves_with_path(
        given, lambda _, x: plain(x), is_leaf_takes_path=True
    )
