"""Products with gathers and scatters, block by block as `jit` chooses it: the whole's values and
gradients, what is sent, and the switch."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax, nn
from funcgrad.core.ir import interpret
from funcgrad.errors import ArgumentError
from funcgrad.parallel import (
    AbstractMesh,
    NamedSharding,
    P,
    make_mesh,
    shard_map,
    tensor_products,
    with_sharding_constraint,
)
from funcgrad.parallel.partitioner.analysis import traffic
from funcgrad.parallel.partitioner.partition import sent
from tests.parallel.partitioned import checked, partitioned, run

MESH = AbstractMesh((4,), ("tp",))
CUTS = [(None, "tp"), (None, "tp"), ("tp",)]


def cut(x, *spec, mesh=MESH):
    return with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def mlp(x, up, down):
    """A layer of tensor parallelism, whose activations are cut along the sequence outside."""
    return cut(fnp.sin(x @ up) @ down, None, "tp")


def operands(rng, places=4, layers=()):
    """Activations of fewer bytes than weights, which would be gathered instead."""
    shapes = (2, places, 12), (*layers, 12, 64), (*layers, 64, 12)
    return [rng.normal(size=s) / 4 for s in shapes]


def both(f):
    """A function's value and its gradients, as they are cut like the operands."""

    def found(*xs):
        value, (dx, *dws) = fg.value_and_grad(lambda *xs: fnp.sum(fnp.sin(f(*xs))), (0, 1, 2))(*xs)
        return [value, cut(dx, None, "tp"), *dws]

    return found


def counts(program):
    """How many collectives of each kind run."""
    found = Counter()
    for (kind, _), (n, _) in traffic(program.jaxpr, program.mesh.shape).items():
        found[kind] += n
    return dict(found)


def same(fun, args, cuts, mesh=MESH):
    """A function's programs in both ways, after their results were found to be those of the
    whole."""
    found = []
    for way in ("ring", "whole"):
        with tensor_products(way):
            program, jaxpr, values = partitioned(fun, args, mesh, cuts)
        wanted = interpret(jaxpr, np, *(np.asarray(v) for v in values))
        for g, w in zip(run(checked(program), values), wanted, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-10)
        found.append(program)
    assert sent(found[0]) == sent(found[1])
    return map(counts, found)


def test_a_layer(rng):
    ring, whole = same(lambda *xs: [mlp(*xs)], operands(rng), CUTS)
    assert whole == {"all_gather": 1, "reduce_scatter": 1}
    assert ring == {"permute": 6}


def test_its_gradient(rng):
    """The gradient's gather goes to two products, which share a ring; what the forward pass gathers
    is put together for the weight's gradient."""
    ring, whole = same(both(mlp), operands(rng), CUTS)
    assert whole == {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1}
    assert ring == {"permute": 12, "all_reduce": 1}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_scanned_layers(rng, checkpoint):
    layer = fg.checkpoint(mlp) if checkpoint else mlp

    def deep(x, up, down):
        return lax.scan(lambda h, w: (h + layer(h, *w), None), x, (up, down))[0]

    cuts = [(None, "tp"), (None, None, "tp"), (None, "tp")]
    ring, whole = same(both(deep), operands(rng, layers=(3,)), cuts)
    assert (whole["all_gather"], whole["reduce_scatter"]) == (12 if checkpoint else 9, 6)
    assert ring.pop("permute") == 3 * (whole.pop("all_gather") + whole.pop("reduce_scatter"))
    assert ring == whole


SINGLE = {
    "rows": ("abc,cd->abd", (None, "tp"), (None,)),
    "rows of the second": ("cd,abc->dab", (None,), (None, "tp")),
    "contracted": ("abc,cd->abd", (None, None, "tp"), ()),
    "two, of which one is contracted": ("abc,bcd->abd", (None, None, "tp"), ()),
    "batch": ("abc,acd->abd", ("tp",), ()),
}


@pytest.mark.parametrize("case", SINGLE)
def test_what_a_gather_goes_along(rng, case):
    formula, *cuts = SINGLE[case]
    sizes = {"a": 4, "b": 8, "c": 12, "d": 5}
    ins, _ = formula.split("->")
    xs = [rng.normal(size=[sizes[i] for i in names]) for names in ins.split(",")]

    # Whole results of a program whose operands are gathered by the user.
    def product(*xs):
        return [cut(fnp.einsum(formula, *(cut(x) for x in xs)))]

    ring, whole = same(product, xs, cuts)
    assert whole == {"all_gather": 1}
    assert ring == {"permute": 3}


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_what_a_scatter_goes_along(rng, axis):
    xs = [rng.normal(size=s) for s in ((4, 8, 64), (4, 64, 12))]
    out = tuple("tp" if d == axis else None for d in range(3))
    ring, whole = same(lambda x, w: [cut(x @ w, *out)], xs, [(None, None, "tp"), (None, "tp")])
    assert whole == {"reduce_scatter": 1}
    assert ring == {"permute": 3}


def test_over_two_axes(rng):
    mesh = AbstractMesh((2, 2), ("a", "b"))
    axes = ("a", "b")

    def layer(x, up, down):
        return [cut(fnp.sin(x @ up) @ down, None, axes, mesh=mesh)]

    cuts = [(None, axes), (None, axes), (axes,)]
    same(layer, operands(rng), cuts, mesh)


def test_on_many_devices_turns_are_a_loop(rng):
    mesh = AbstractMesh((16,), ("tp",))

    def lengths(m, places):
        layer = lambda x, up, down: [cut(fnp.sin(x @ up) @ down, None, "tp", mesh=m)]
        xs = operands(rng, places)
        ring, _ = same(layer, xs, CUTS, m)
        assert ring == {"permute": 2 * (m.size - 1)}
        with tensor_products("ring"):
            return len(partitioned(layer, xs, m, CUTS)[0].jaxpr.eqns)

    assert lengths(MESH, 4) == lengths(mesh, 16)


def test_sums_of_narrow_floats_are_in_float32(rng):
    xs = [x.astype("bfloat16") for x in map(fnp.asarray, operands(rng))]
    with tensor_products("ring"):
        program, _, values = partitioned(lambda *xs: [mlp(*xs)], xs, MESH, CUTS)
    assert program.jaxpr.out_avals[0].dtype == "bfloat16"
    (found,) = run(checked(program), values)
    up, down = (np.asarray(x, "float32") for x in xs[1:])
    middle = np.sin((np.asarray(xs[0], "float32") @ up).astype(xs[0].dtype).astype("float32"))
    wanted = middle.astype(xs[0].dtype).astype("float32") @ down
    np.testing.assert_allclose(found.astype("float32"), wanted, rtol=0.02, atol=0.05)


def test_what_is_used_before_stays_whole(rng):
    def layer(x, up, down):
        whole = cut(x)
        return [fnp.sum(whole, 0), whole @ up]

    ring, whole = same(layer, operands(rng), CUTS)
    assert ring == whole == {"all_gather": 1}


def lowered(f, shapes, mesh, specs):
    types = [
        fg.ShapeDtypeStruct(s, "float32", sharding=NamedSharding(mesh, P(*spec)))
        for s, spec in zip(shapes, specs, strict=True)
    ]
    return fg.jit(f).lower(*types).device_analysis()


def wide_layer(x, up, down):
    return mlp(nn.standardize(x), up, down)


@pytest.mark.parametrize(("places", "kinds"), [
    (2048, {"permute": 6}), (64, {"all_gather": 1, "reduce_scatter": 1}),
])  # fmt: skip
def test_by_bytes(places, kinds):
    shapes = (2, places, 1024), (1024, 1 << 14), (1 << 14, 1024)
    with tensor_products("auto"):
        found = lowered(wide_layer, shapes, MESH, CUTS)
    assert found.counts == kinds
    assert lowered(wide_layer, shapes, MESH, CUTS).counts == {"all_gather": 1, "reduce_scatter": 1}


def test_devices_of_one_process_send_nothing():
    mesh = make_mesh(4, "tp")
    f = lambda x, up, down: cut(fnp.sin(nn.standardize(x) @ up) @ down, None, "tp", mesh=mesh)
    shapes = (2, 2048, 1024), (1024, 1 << 14), (1 << 14, 1024)
    with tensor_products("auto"):
        assert "permute" not in lowered(f, shapes, mesh, CUTS).counts


def test_weights_are_fetched_early_instead():
    """FSDP: what is gathered is an input."""
    shapes = (512, 16, 2048), (2048, 2048), (2048, 2048)
    specs = ("tp",), ("tp",), ("tp",)
    mesh = AbstractMesh((2,), ("tp",))
    f = lambda x, up, down: fnp.tanh(x @ up) @ down
    with tensor_products("auto"):
        assert lowered(f, shapes, mesh, specs).counts == {"all_gather": 2}
    with tensor_products("ring"):
        assert lowered(f, shapes, mesh, specs).counts == {"permute": 2}


def test_compiled_for_virtual_devices(rng):
    mesh = make_mesh(4, "tp")
    xs = [x.astype("float32") for x in operands(rng)]
    placed = [fg.device_put(x, NamedSharding(mesh, P(*c))) for x, c in zip(xs, CUTS, strict=True)]
    layer = fg.jit(lambda x, up, down: cut(fnp.sin(x @ up) @ down, None, "tp", mesh=mesh))
    with tensor_products("ring"):
        found = layer(*placed)
    x, up, down = xs
    np.testing.assert_allclose(np.asarray(found), np.sin(x @ up) @ down, rtol=1e-4, atol=1e-5)


def test_in_a_shard_map_as_well(rng):
    """What a user gathers is known as a gather there, too."""
    x, up, _ = operands(rng)

    def body(x, w):
        return lax.all_gather(x, "tp", axis=1, tiled=True) @ w

    f = shard_map(body, mesh=MESH, in_specs=(P(None, "tp"), P(None, "tp")),
                  out_specs=P(None, None, "tp"))  # fmt: skip
    for way, kinds in (("ring", {"permute": 3}), ("whole", {"all_gather": 1})):
        with tensor_products(way):
            program, _, values = partitioned(lambda x, w: [f(x, w)], [x, up], MESH, CUTS[:2])
        assert counts(checked(program)) == kinds
        np.testing.assert_allclose(run(program, values)[0], x @ up, rtol=1e-12)


def test_other_ways_are_refused():
    words = r"tensor_products: way must be one of 'auto', 'ring', 'whole', got 'rings'"
    with pytest.raises(ArgumentError, match=words), tensor_products("rings"):
        pass


def test_a_program_for_each_way(rng):
    """The way is part of what a compiled program is known by."""
    layer = fg.jit(partial(wide_layer))
    shapes = (1, 8, 12), (12, 16), (16, 12)
    found = []
    for way in ("ring", "whole", "ring"):
        with tensor_products(way):
            types = [fg.ShapeDtypeStruct(s, "float32", sharding=NamedSharding(MESH, P(*c)))
                     for s, c in zip(shapes, CUTS, strict=True)]  # fmt: skip
            found.append(layer.lower(*types).device_analysis().counts)
    assert found[0] == found[2] == {"permute": 6} != found[1]
