"""What programs cost on paper: the bytes of each technique, memory of each device, any number of
devices."""

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.sharding import AbstractMesh, NamedSharding, P
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.parallel.partitioner.analysis import analyse
from funcgrad.parallel.partitioner.partition import partition
from funcgrad.parallel.programs.passes import scheduled
from funcgrad.transforms.passes.simplify import simplify
from tests.parallel.models import mlp_step
from tests.parallel.partitioned import sharded

CUT, WHOLE = P("data"), P()
WIDTH, TOKENS, DEEP = 256, 4096, 8
LAYER = 4 * WIDTH * WIDTH


def lowered(fun, avals, mesh, specs):
    """A program of operands that are only types."""
    jaxpr, consts = stage(fun, [aval_of(a) for a in avals])
    assert not consts
    return partition(simplify(jaxpr), mesh, sharded(mesh, *specs))


def struct(*shape):
    return fg.ShapeDtypeStruct(shape, "float32")


def training(mesh, params, state, batch=CUT, layers=DEEP):
    ws = [struct(WIDTH, WIDTH)] * layers
    data = [struct(TOKENS, WIDTH)] * 2
    specs = [params] * layers + [state] * layers + [batch] * 2
    return lowered(mlp_step(layers=layers), [*ws, *ws, *data], mesh, specs)


def mesh_of(n):
    return AbstractMesh((n,), ("data",))


def regathered(n):
    return NamedSharding(mesh_of(n), CUT, regather=True)


def test_data_parallel_sends_twice_the_gradients():
    found = analyse(training(mesh_of(4), WHOLE, WHOLE))
    assert found.counts == {"all_reduce": DEEP}
    assert found.bytes_sent == pytest.approx(2 * 3 / 4 * DEEP * LAYER)


def test_fully_sharded_sends_half_as_much_again():
    found = analyse(training(mesh_of(4), regathered(4), CUT))
    assert found.counts == {"all_gather": 2 * DEEP - 1, "reduce_scatter": DEEP}
    assert found.bytes_sent == pytest.approx(3 / 4 * (3 * DEEP - 1) * LAYER)


@pytest.mark.parametrize("n", [2, 8])
def test_state_is_shared_by_devices(n):
    replicated = analyse(training(mesh_of(n), WHOLE, WHOLE))
    zero_1 = analyse(training(mesh_of(n), WHOLE, CUT))
    zero_3 = analyse(training(mesh_of(n), regathered(n), CUT))
    data = 2 * 4 * TOKENS * WIDTH // n
    assert replicated.argument_bytes == 2 * DEEP * LAYER + data
    assert zero_1.argument_bytes == DEEP * LAYER + DEEP * LAYER // n + data
    assert zero_3.argument_bytes == 2 * DEEP * LAYER // n + data


def test_two_layers_are_whole_at_once():
    """Memory beside arguments: activations, which grow with the batch alone, and what is gathered
    and not yet scattered, which does not grow with the depth."""
    n = 64
    mesh = mesh_of(n)
    activation = 4 * TOKENS // n * WIDTH

    def temporaries(layers):
        program = training(mesh, regathered(n), CUT, layers=layers)
        return analyse(program).temporary_bytes

    # Two kept a layer: what it gives, and its derivative.
    deeper = temporaries(16) - temporaries(8)
    assert deeper <= 8 * 2.5 * activation
    assert temporaries(8) <= 8 * 2.5 * activation + 4 * LAYER


def test_work_is_shared_by_devices():
    one = analyse(training(mesh_of(1), WHOLE, WHOLE)).flops
    many = analyse(training(mesh_of(64), WHOLE, WHOLE)).flops
    assert many == pytest.approx(one / 64, rel=0.15)


def test_thousands_of_devices():
    mesh = AbstractMesh((512, 8), ("data", "tp"))
    rows = P(("data",))

    def fun(x, w1, w2):
        return [fnp.sum(fnp.tanh(x @ w1) @ w2, 0)]

    avals = [struct(2**20, 4096), struct(4096, 16384), struct(16384, 4096)]
    program = lowered(fun, avals, mesh, [rows, P(None, "tp"), P("tp")])
    found = analyse(program)
    # The sums over tokens and over parts of the contracted axis are one.
    assert found.counts == {"all_reduce": 1}
    assert found.argument_bytes == 4 * (2**20 // 512 * 4096 + 2 * 4096 * 16384 // 8)
    assert found.flops == pytest.approx(4 * 2**20 * 4096 * 16384 / 4096, rel=0.02)


def test_loops_count_each_turn():
    def fun(x):
        return [lax.fori_loop(0, 5, lambda i, v: v - fnp.mean(v), x)]

    found = analyse(lowered(fun, [struct(64)], mesh_of(4), [CUT]))
    assert found.counts == {"all_reduce": 5}


def test_of_branches_the_dearest_counts():
    def fun(x, p):
        return [lax.cond(p, lambda x: x - fnp.mean(x), lambda x: x, x)]

    found = analyse(
        lowered(fun, [struct(64), fg.ShapeDtypeStruct((), "bool")], mesh_of(4), [CUT, WHOLE])
    )
    assert found.counts == {"all_reduce": 1}


@pytest.mark.parametrize("overlap", [False, True])
def test_schedules_keep_the_bytes(overlap):
    program = training(mesh_of(4), regathered(4), CUT)
    bucketed = analyse(scheduled(program, scatter_bytes=2**25, overlap=overlap))
    assert bucketed.counts["reduce_scatter"] == 1
    assert bucketed.bytes_sent == pytest.approx(analyse(program).bytes_sent)


def test_tables():
    found = analyse(training(mesh_of(4), WHOLE, CUT))
    text = repr(found)
    assert text.splitlines()[0] == "AbstractMesh('data': 4)"
    assert "reduce_scatter  data" in text
    assert "1.57 MB" in text
    shown = found._repr_html_()
    assert "<td>reduce_scatter</td><td>data</td><td>8</td>" in shown
    assert np.isfinite(found.flops)
