"""Partitioned programs: the techniques of distributed training by their collectives, programs in
programs, shard_map inside, errors."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import interpret
from funcgrad.core.sharding import AbstractMesh, NamedSharding, P
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.errors import ShardingError
from funcgrad.ops.sharding import sharding_constraint_p
from funcgrad.optim.losses import softmax_cross_entropy_with_integer_labels
from funcgrad.parallel.mapping.shard_map import shard_map
from funcgrad.parallel.meshes import make_mesh
from funcgrad.parallel.partitioner.analysis import analyse
from funcgrad.parallel.partitioner.partition import partition
from funcgrad.parallel.partitioner.propagate import propagate
from funcgrad.transforms.passes.simplify import simplify
from tests.parallel.models import (
    LAYERS,
    accumulated,
    block,
    block_args,
    block_step,
    mlp_args,
    mlp_step,
    normal,
    stacked_step,
    tied_step,
)
from tests.parallel.partitioned import checked, counts, partitioned, run, sharded, traced

DATA = AbstractMesh((4,), ("data",))
TP = AbstractMesh((2,), ("tp",))
DATA_TP = AbstractMesh((2, 2), ("data", "tp"))
CUT, WHOLE = P("data"), P()


def fsdp(mesh, *specs):
    return [NamedSharding(mesh, s, regather=True) for s in specs]


def constrain(x, mesh, spec):
    return sharding_constraint_p.bind(x, sharding=NamedSharding(mesh, spec))


def collectives(fun, args, mesh, specs):
    """The counts of collectives, after a comparison with the unsharded results."""
    program = compare(fun, args, mesh, specs)
    return counts(program)


def compare(fun, args, mesh, specs, tol=1e-4):
    program, jaxpr, args = partitioned(fun, args, mesh, specs)
    checked(program)
    want = interpret(jaxpr, np, *map(np.asarray, args))
    for g, w in zip(run(program, args), want, strict=True):
        np.testing.assert_allclose(g, w, rtol=tol, atol=tol)
    return program


# ---- an MLP: what is cut of parameters, optimizer state and batch


def mlp(params, state, out=None, mesh=DATA, batch=CUT):
    """Collectives of a step of training, the loss left aside."""
    keep = (lambda x: x) if out is None else (lambda x: constrain(x, mesh, out))
    specs = [*params, *state, batch, batch]
    return collectives(mlp_step(keep), mlp_args(), mesh, specs)


def test_data_parallel_sums_gradients():
    assert mlp([WHOLE] * 3, [WHOLE] * 3) == {"psum": LAYERS}


def test_zero_1_scatters_gradients_and_gathers_parameters():
    found = mlp([WHOLE] * 3, [CUT] * 3, out=WHOLE)
    assert found == {"psum_scatter": LAYERS, "all_gather": LAYERS}


def test_zero_3_gathers_parameters_twice():
    found = mlp(fsdp(DATA, *[CUT] * 3), [CUT] * 3, out=CUT)
    # The first layer's input has no gradient: its weight isn't needed again.
    assert found == {"all_gather": 2 * LAYERS - 1, "psum_scatter": LAYERS}


def test_parameters_that_may_stay_are_gathered_once():
    found = mlp([CUT] * 3, [CUT] * 3, out=CUT)
    assert found == {"all_gather": LAYERS, "psum_scatter": LAYERS}


def test_hybrid_sharding_sums_parts_over_replicas():
    mesh = AbstractMesh((2, 2), ("replica", "shard"))
    cut = P("shard")
    found = mlp(fsdp(mesh, *[cut] * 3), [cut] * 3, None, mesh, P(("replica", "shard")))
    assert found == {"all_gather": 2 * LAYERS - 1, "psum_scatter": LAYERS, "psum": LAYERS}


def test_a_weight_that_is_used_twice_is_summed_once():
    args = [mlp_args()[i] for i in (0, -2, -1)]
    assert collectives(tied_step, args, DATA, [WHOLE, CUT, CUT]) == {"psum": 1}


def test_microbatches_are_summed_once():
    ws = mlp_args()[:LAYERS]
    xs, ys = normal(4, 32, 16, seed=1), normal(4, 32, 16, seed=2)
    fun = lambda *flat: accumulated(list(flat[:LAYERS]), *flat[LAYERS:])
    batch = P(None, "data")
    program = compare(fun, [*ws, xs, ys], DATA, [WHOLE] * 3 + [batch] * 2)
    assert counts(program) == {"psum": LAYERS}
    outside = [e.prim.name for e in program.jaxpr.eqns]
    assert outside.count("psum") == LAYERS
    program = compare(fun, [*ws, xs, ys], DATA, [*fsdp(DATA, *[CUT] * 3), batch, batch])
    assert counts(program)["psum_scatter"] == LAYERS


def test_layers_in_a_loop():
    args = [normal(5, 16, 16), *mlp_args()[-2:]]
    assert collectives(stacked_step, args, DATA, [WHOLE, CUT, CUT]) == {"psum": 1}
    specs = [*fsdp(DATA, P(None, "data")), CUT, CUT]
    program = compare(stacked_step, args, DATA, specs)
    # In each turn forwards and in each turn backwards, never of all layers at once.
    assert counts(program) == {"all_gather": 2, "psum_scatter": 1}
    assert not any(e.prim.name == "all_gather" for e in program.jaxpr.eqns)


# ---- a transformer's block

TP_SPECS = [WHOLE, *[P(None, "tp")] * 3, P("tp"), WHOLE, P(None, "tp"), P("tp")]


def forward(cut=lambda x: x):
    return lambda *flat: [block(list(flat[:8]), flat[8], cut=cut)]


def test_tensor_parallel():
    args = block_args(2, 8, 16)
    assert collectives(forward(), args[:9], TP, [*TP_SPECS, WHOLE]) == {"psum": 2}
    assert collectives(block_step(), args, TP, [*TP_SPECS, WHOLE, WHOLE]) == {"psum": 4}


def test_sequence_parallel():
    args = block_args(2, 8, 64)
    seq = P(None, "tp")
    cut = lambda x: constrain(x, TP, seq)
    found = collectives(forward(cut), args[:9], TP, [*TP_SPECS, seq])
    assert found == {"all_gather": 2, "psum_scatter": 2}
    found = collectives(block_step(cut), args, TP, [*TP_SPECS, seq, seq])
    # The sums are those of the norms' gains, whose gradients are sums over the sequence.
    assert found == {"all_gather": 4, "psum_scatter": 4, "psum": 2}


def test_data_and_tensor_parallel():
    args = block_args(4, 8, 16)
    found = collectives(block_step(), args, DATA_TP, [*TP_SPECS, CUT, CUT])
    assert found == {"psum": 4 + 8}


def test_fully_sharded_block():
    args = block_args(4, 16, 16)
    specs = [*fsdp(DATA, *[CUT] * 8), CUT, CUT]
    found = collectives(block_step(), args, DATA, specs)
    assert found == {"all_gather": 14, "psum_scatter": 8}


def test_fully_sharded_and_tensor_parallel():
    args = block_args(4, 16, 16)
    both = [P("data"), *[P("data", "tp")] * 3, P("tp", "data"), P("data"), P("data", "tp"),
            P("tp", "data")]  # fmt: skip
    found = collectives(block_step(), args, DATA_TP, [*fsdp(DATA_TP, *both), CUT, CUT])
    assert found == {"all_gather": 14, "psum_scatter": 8, "psum": 4}


# ---- embeddings


def embedding_step(table, ids, y):
    loss = lambda t: fnp.mean((t[ids] - y) ** 2)
    return [table - fg.grad(loss)(table)]


def embedding_args(rows=64):
    ids = np.random.default_rng(0).integers(-rows, rows, (8, 4)).astype("int32")
    return [normal(rows, 16), ids, normal(8, 4, 16, seed=1)]


def test_embedding_of_a_batch_that_is_cut():
    found = collectives(embedding_step, embedding_args(), DATA, [WHOLE, CUT, CUT])
    assert found == {"psum": 1}


def test_embedding_whose_rows_are_cut():
    """Each device looks up the rows that it has; updates of other rows are dropped."""
    found = collectives(embedding_step, embedding_args(), DATA, [CUT, WHOLE, WHOLE])
    assert found == {"psum": 1}


def test_embedding_whose_columns_are_cut():
    found = collectives(lambda t, i: [t[i]], embedding_args()[:2], DATA, [P(None, "data"), WHOLE])
    assert found == {}


def test_loss_over_classes_that_are_cut():
    """No device sees all of a row: a maximum, a sum and the label's own are exchanged."""
    labels = np.random.default_rng(0).integers(0, 64, 8).astype("int32")
    args = [normal(8, 16), normal(16, 64, seed=1), labels]
    specs = [WHOLE, P(None, "tp"), WHOLE]
    loss = lambda h, w, i: fnp.mean(softmax_cross_entropy_with_integer_labels(h @ w, i))
    assert collectives(lambda *xs: [loss(*xs)], args, TP, specs) == {"pmax": 1, "psum": 2}
    gradients = lambda *xs: list(fg.grad(loss, (0, 1))(*xs))
    assert collectives(gradients, args, TP, specs) == {"pmax": 1, "psum": 3}


# ---- programs in programs


def test_while_with_a_carry_that_is_cut():
    def fun(x):
        small = lambda s: fnp.sum(s[1] ** 2) < 100.0
        return [lax.while_loop(small, lambda s: (s[0] + 1, s[1] * 1.5), (0, x))[1]]

    program = compare(fun, [normal(8, 4)], DATA, [CUT])
    assert program.out_cuts == ((("data",), ()),)
    assert counts(program) == {"psum": 1}


def test_branches_are_cut_alike():
    def fun(x, y):
        return [lax.cond(x[0, 0] > 0, lambda x, y: x @ y, lambda x, y: x + y, x, y)]

    program = compare(fun, [normal(8, 8), normal(8, 8, seed=1)], DATA, [CUT, WHOLE])
    assert program.out_cuts == ((("data",), ()),)


def test_a_constraint_in_a_loop():
    def fun(x):
        turn = lambda i, x: constrain(fnp.sin(x), DATA, P(None, "data"))
        return [lax.fori_loop(0, 3, turn, x)]

    assert compare(fun, [normal(8, 8)], DATA, [None]).out_cuts == (((), ("data",)),)


# ---- shard_map inside


def centered(mesh):
    """x @ w less the sum over the devices of "data", of which the rest of the mesh is automatic."""

    def fun(x, w):
        part = shard_map(
            lambda a: a - lax.psum(fnp.sum(a * a), "data"),
            mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names=("data",),
        )  # fmt: skip
        return [part(fnp.sin(x) @ w) * 2]

    return fun


@pytest.mark.parametrize("x_spec", [P("data"), P(None, "data"), P(("tp", "data")), None])
def test_shard_map_over_some_axes(x_spec):
    mesh = make_mesh((2, 2), ("data", "tp"))
    args, specs = [normal(8, 16), normal(16, 8, seed=1)], [x_spec, P(None, "tp")]
    program = compare(centered(mesh), args, mesh, specs)
    assert program.out_cuts == ((("data",), ("tp",)),) or x_spec != P("data")
    gradient = lambda x, w: [fg.grad(lambda x: fnp.sum(centered(mesh)(x, w)[0] ** 2))(x)]
    compare(gradient, args, mesh, specs, tol=1e-3)


def test_constraint_over_a_manual_axis():
    mesh = make_mesh((2,), "data")
    fun = shard_map(lambda x: constrain(x, mesh, CUT), mesh=mesh, in_specs=CUT, out_specs=CUT)
    jaxpr, _ = traced(lambda x: [fun(x)], [normal(8)])
    with pytest.raises(ShardingError, match="names \\['data'\\], which are manual"):
        partition(jaxpr, mesh, [None])


# ---- what is given, what is wrong


def test_inputs_without_a_sharding_are_cut_as_the_program_uses_them():
    program, *_ = partitioned(lambda x, y: [x + y], [normal(8), normal(8)], DATA, [CUT, None])
    assert program.in_cuts == ((("data",),), (("data",),))
    assert counts(program) == {}


def test_axes_of_size_1_need_no_collective():
    mesh = AbstractMesh((1, 2), ("data", "tp"))
    found = collectives(mlp_step(), mlp_args(), mesh, [WHOLE] * 6 + [CUT] * 2)
    assert found == {}


def test_callbacks_get_whole_arrays():
    double = lambda x: fg.pure_callback(lambda v: v * 2, fg.ShapeDtypeStruct((8,), "float32"), x)
    assert collectives(lambda x: [double(x)], [normal(8)], DATA, [CUT]) == {"all_gather": 1}


def test_sharding_of_another_mesh():
    jaxpr, _ = traced(lambda x: [x], [normal(8)])
    with pytest.raises(ShardingError, match="input 0.*is of another mesh"):
        partition(jaxpr, DATA, sharded(TP, P("tp")))


def test_size_that_the_mesh_does_not_divide():
    jaxpr, _ = traced(lambda x: [x], [normal(6)])
    with pytest.raises(ShardingError, match="axis 0 of input 0, of size 6, can't be cut into 4"):
        partition(jaxpr, DATA, sharded(DATA, CUT))


def test_work_grows_with_the_number_of_equations():
    """Equations are looked at a bounded number of times, whatever the depth."""
    visits = []
    for layers in (4, 40, 400):
        jaxpr, _ = traced(mlp_step(layers=layers), mlp_args(layers=layers))
        shardings = sharded(DATA, *[WHOLE] * layers, *[CUT] * layers, CUT, CUT)
        visits.append(propagate(jaxpr, DATA, shardings).visits / len(jaxpr.eqns))
    assert max(visits) < 6
    assert visits[2] < visits[1] * 1.05


# ---- sums that stay parts


def sums(fun, *args, specs=(CUT,), mesh=DATA):
    return collectives(lambda *xs: [fun(*xs)], args, mesh, list(specs))


def test_linear_ops_sum_their_result():
    x = normal(8, 4)
    assert sums(lambda x: fnp.sum(x, 0).reshape(2, 2).T * 2.0 / 3.0, x) == {"psum": 1}
    assert sums(lambda x: fnp.sum(fnp.sum(x, 0) + fnp.max(x, 0)), x) == {"psum": 1, "pmax": 1}
    assert sums(lambda x: fnp.sum(x, 0) - fnp.sum(x * x, 0) + fnp.sum(x**3, 0), x) == {"psum": 1}


def test_what_is_used_twice_is_summed_once():
    def fun(x):
        total = fnp.sum(x, 0)
        return fnp.concatenate([total * 2.0, total * 3.0])

    assert sums(fun, normal(8, 4)) == {"psum": 1}


def test_ops_that_are_not_linear_need_the_sum():
    whole_numbers = np.arange(-8, 24, dtype="int32").reshape(8, 4)
    assert sums(lambda x: lax.div(fnp.sum(x, 0), np.int32(3)), whole_numbers) == {"psum": 1}
    assert sums(lambda x: fnp.sort(fnp.sum(x, 0)), normal(8, 4)) == {"psum": 1}
    key_and_value = lambda x: lax.sort((fnp.sum(x, 0), x[0]), num_keys=1)
    collectives(lambda x: [*key_and_value(x)], [normal(8, 4)], DATA, [CUT])


@pytest.mark.parametrize("factor", [np.inf, 0.0, np.nan])
def test_parts_are_not_scaled_by_what_only_sums_may_be(factor):
    x = np.array([1.0, -2.0, 3.0, 4.0], "float32")
    fun = lambda x: [fnp.sum(x) * factor, fnp.sum(x) / factor]
    program, jaxpr, args = partitioned(fun, [x], DATA, [CUT])
    np.testing.assert_array_equal(run(program, args), interpret(jaxpr, np, *args))


def test_sums_in_a_wider_type_are_summed_there():
    """Gradients of microbatches in bfloat16, summed up in float32."""
    x = normal(4, 8, 4).astype("bfloat16")

    def fun(x):
        add = lambda total, part: (total + fnp.sum(part, 0).astype("float32"), None)
        return [lax.scan(add, fnp.zeros(4), x)[0]]

    program = compare(fun, [x], DATA, [P(None, "data")], tol=0.05)
    assert counts(program) == {"psum": 1}
    (total,) = [e for e in program.jaxpr.eqns if e.prim.name == "psum"]
    assert total.ins[0].aval.dtype == np.float32


def test_a_loop_that_starts_with_a_value():
    fun = lambda init, xs: [lax.scan(lambda c, x: (c + fnp.sum(x, 0), None), init, xs)[0]]
    program = compare(fun, [normal(4), normal(3, 8, 4)], DATA, [WHOLE, P(None, "data")])
    assert [e.prim.name for e in program.jaxpr.eqns].count("psum") == 1
    assert counts(program) == {"psum": 1}


def test_a_loop_that_reads_its_sum():
    fun = lambda xs: [*lax.scan(lambda c, x: (c + fnp.sum(x, 0), c), fnp.zeros(4), xs)]
    compare(fun, [normal(3, 8, 4)], DATA, [P(None, "data")])


# ---- experts


def test_experts_exchange_tokens_twice():
    """Tokens cut over devices are dealt out to experts, one or more a device, and come back."""
    mesh = AbstractMesh((4,), ("ep",))
    groups, size, experts, room, width = 8, 16, 4, 4, 8

    def fun(x, deal, w1, w2):
        sent = fnp.einsum("gsec,gsd->egcd", deal, x)
        sent = constrain(sent, mesh, P("ep"))
        done = fnp.einsum("egcf,efd->egcd", fnp.tanh(fnp.einsum("egcd,edf->egcf", sent, w1)), w2)
        done = constrain(done, mesh, P(None, "ep"))
        return [fnp.einsum("gsec,egcd->gsd", deal, done)]

    args = [normal(groups, size, width), normal(groups, size, experts, room, seed=1),
            normal(experts, width, 16, seed=2), normal(experts, 16, width, seed=3)]  # fmt: skip
    specs = [P("ep"), P("ep"), P("ep"), P("ep")]
    assert collectives(fun, args, mesh, specs) == {"all_to_all": 2}
    loss = lambda *xs: fnp.mean(fun(*xs)[0] ** 2)
    gradient = lambda *xs: list(fg.grad(loss, (2, 3))(*xs))
    assert collectives(gradient, args, mesh, specs) == {"all_to_all": 3}


def test_zero_2_keeps_parts_of_gradients():
    """Gradients that are constrained in a loop over microbatches are scattered in each turn."""
    ws = mlp_args()[:LAYERS]
    xs, ys = normal(4, 32, 16, seed=1), normal(4, 32, 16, seed=2)
    keep = lambda g: constrain(g, DATA, CUT)
    fun = lambda *flat: accumulated(list(flat[:LAYERS]), *flat[LAYERS:], keep=keep)
    batch = P(None, "data")
    program = compare(fun, [*ws, xs, ys], DATA, [WHOLE] * 3 + [batch] * 2)
    assert counts(program)["psum_scatter"] == LAYERS
    assert "psum_scatter" not in [e.prim.name for e in program.jaxpr.eqns]


# ---- rematerialization


def deep_step(remat, layers=6):
    """A step of residual layers, wide inside, which may be checkpointed."""

    def layer(x, up, down):
        return x + fnp.tanh(x @ up) @ down

    def step(*flat):
        ws, x = list(flat[: 2 * layers]), flat[-1]

        def loss(ws):
            h = x
            for up, down in zip(ws[::2], ws[1::2], strict=True):
                h = (fg.checkpoint(layer) if remat else layer)(h, up, down)
            return fnp.mean(h**2)

        return [w - 0.1 * g for w, g in zip(ws, fg.grad(loss)(ws), strict=True)]

    return step


@pytest.mark.parametrize("spec", [WHOLE, CUT, NamedSharding(DATA, CUT, regather=True)])
def test_what_is_computed_again_is_not_kept(spec):
    up, down = normal(16, 128), normal(128, 16, seed=1)
    args = [*[up, down] * 6, normal(2048, 16)]

    def program(remat):
        jaxpr, _ = stage(deep_step(remat), [aval_of(x) for x in args])
        return partition(simplify(jaxpr, barriers=True), DATA, sharded(DATA, *[spec] * 12, CUT))

    kept, again = program(False), program(True)
    for g, w in zip(run(again, args), run(kept, args), strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
    assert analyse(again).temporary_bytes < 0.6 * analyse(kept).temporary_bytes
    gathers = [analyse(p).counts.get("all_gather", 0) for p in (kept, again)]
    # Whole copies that are kept serve what is computed again; others are gathered anew for it, of
    # each layer the first weight.
    assert gathers == {WHOLE: [0, 0], CUT: [12, 12]}.get(spec, [23, 29])
