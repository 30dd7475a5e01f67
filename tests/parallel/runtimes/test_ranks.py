"""Sharded arrays and partitioned programs on real ranks."""

import numpy as np
import pytest

from tests.parallel import jobs_spmd
from tests.parallel.test_gpt_layouts import LAYOUTS, gpt, reference, settings  # noqa: F401

JOBS = "tests.parallel.jobs_spmd"


def test_arrays(ranks):
    assert ranks(4).run(f"{JOBS}:arrays") == [[]] * 4


def test_reading_what_is_elsewhere(ranks):
    for message, addressable, text in ranks(4).run(f"{JOBS}:reading_what_is_elsewhere"):
        assert "spread over 4 processes" in message
        assert "reshard(x, NamedSharding(mesh, P()))" in message
        assert not addressable
        assert text == "ShardedArray(f32[4,8], P('x') on Mesh('x': 2, 'y': 2))"


def test_programs_that_differ_are_refused(ranks):
    for message in ranks(4).run(f"{JOBS}:programs_that_differ"):
        assert "the ranks don't run the same <lambda>; they first differ in line" in message
        assert "rank 3: " in message
        assert "mul a 3.0" in message


@pytest.mark.parametrize(("start", "stride", "backend"), [(0, 3, "numpy"), (1, 9, "llvm")])
def test_ops(ranks, start, stride, backend):
    """A sample of what `test_partition_ops` does on virtual devices."""
    for wrong, count in ranks(4).run(f"{JOBS}:ops", start, stride, backend):
        assert not wrong
        assert count >= 15


@pytest.mark.parametrize("other", [2, 4])
def test_checkpoints_of_other_ranks(ranks, tmp_path, other):
    folder = str(tmp_path / "run")
    assert ranks(4).run(f"{JOBS}:save_state", folder)[0] == ["step_000003"]
    assert ranks(other).run(f"{JOBS}:load_state", folder) == [([], 7)] * other
    # And on virtual devices of one process.
    assert jobs_spmd.load_state(folder) == ([], 7)


def test_ring(ranks):
    v = jobs_spmd.VALUES
    parts = sum(v[i : i + 2, j : j + 4] for i in (0, 2) for j in (0, 4))
    for got in ranks(4).run(f"{JOBS}:ring"):
        np.testing.assert_allclose(got, 2 * parts)


def test_exchanges_over_several_axes(ranks):
    wanted = jobs_spmd.over_several_axes()
    assert ranks(4).run(f"{JOBS}:over_several_axes") == [wanted] * 4


def test_stencils_exchange_edges(ranks):
    wanted = [(False, True)] * 12
    assert jobs_spmd.stencils() == wanted
    assert ranks(4).run(f"{JOBS}:stencils") == [wanted] * 4


def test_gradients_op_by_op(ranks):
    v = jobs_spmd.VALUES
    want = v.T @ (1 - np.tanh(v @ v.T / 4096) ** 2)
    for got in ranks(4).run(f"{JOBS}:eager_gradient"):
        np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_are_those_of_one_device(ranks, reference, layout):  # noqa: F811
    results = ranks(4).run(f"{JOBS}:gpt_losses", layout, len(reference[0]))
    wanted, _ = reference
    for losses, kept, total in results:
        np.testing.assert_allclose(losses, wanted, rtol=2e-5)
        assert losses == results[0][0]
        if layout == "fsdp":
            # Small leaves stay whole.
            assert kept < 0.45 * total
