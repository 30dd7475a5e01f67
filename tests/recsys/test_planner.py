"""Plans against all plans that there are, within memory, as text and as pictures."""

import itertools
import json

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import recsys
from funcgrad.errors import ArgumentError
from funcgrad.recsys import costs, layouts
from funcgrad.recsys.planner import _job, _Search


def search_of(tables, devices, memory):
    job = _job(devices, 64, "adagrad", costs.Bandwidths())
    return _Search(job, memory, {k: costs.options(k, costs.as_stats(k, t), job, list(layouts.KINDS))
                                 for k, t in tables.items()})  # fmt: skip


def by_force(tables, devices, memory):
    """The fastest of all plans, one by one."""
    search = search_of(tables, devices, memory)
    best = np.inf
    for chosen in itertools.product(*(list(search.choices(k)) for k in tables)):
        seconds, taken = search.loads(dict(zip(tables, chosen, strict=True)))
        if taken.max() <= memory:
            best = min(best, seconds.max())
    return best


def random_tables(rng, count):
    return {
        f"t{i}": recsys.TableStats(
            int(10 ** rng.uniform(1, 5)), int(rng.choice([8, 16])), float(rng.uniform(1, 20))
        )
        for i in range(count)
    }


@pytest.mark.parametrize("case", range(8))
def test_as_good_as_all_plans(rng, case):
    devices = [2, 3, 4, (2, 2)][case % 4]
    tables = random_tables(rng, 4 if case % 4 == 0 else 3)
    total = sum(t.rows * t.dim * 8 for t in tables.values())
    memory = total / np.prod(devices) * [1.5, 4.0][case // 4] + 1e6
    want = by_force(tables, devices, memory)
    if np.isinf(want):
        with pytest.raises(ArgumentError, match="no plan was found within"):
            recsys.plan(tables, devices, memory=memory, batch=64, optimizer="adagrad")
        return
    found = recsys.plan(tables, devices, memory=memory, batch=64, optimizer="adagrad")
    assert found.exact
    np.testing.assert_allclose(found.step, want, rtol=1e-9)
    assert max(found.bytes) <= memory


def by_halves(tables, devices, memory):
    """As `by_force`: loads of all plans of one half of the tables beside all of the other's."""
    names, halves = list(tables), []
    for part in (names[: len(names) // 2], names[len(names) // 2 :]):
        search = search_of({k: tables[k] for k in part}, devices, memory)
        chosen = itertools.product(*(list(search.choices(k)) for k in part))
        halves.append(np.array([search.loads(dict(zip(part, c, strict=True))) for c in chosen]))
    best = np.inf
    for one in halves[0]:
        seconds, taken = (one + halves[1]).max(axis=2).T
        best = min(best, seconds[taken <= memory].min(initial=np.inf))
    return best


@pytest.mark.parametrize("devices", [4, pytest.param((2, 2), marks=pytest.mark.slow)])
def test_six_tables_on_four_devices(rng, devices):
    tables = random_tables(rng, 6)
    memory = sum(t.rows * t.dim * 8 for t in tables.values()) / 2 + 1e6
    found = recsys.plan(tables, devices, memory=memory, batch=64, optimizer="adagrad")
    assert found.exact
    np.testing.assert_allclose(found.step, by_halves(tables, devices, memory), rtol=1e-9)
    assert max(found.bytes) <= memory


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", range(20))
def test_memory_is_kept(rng, case):
    tables = random_tables(rng, int(rng.integers(1, 20)))
    devices = [4, (2, 4), (4, 8)][case % 3]
    total = sum(t.rows * t.dim * 4 for t in tables.values())
    memory = total / np.prod(devices) * rng.uniform(0.8, 3) + 2e6
    try:
        found = recsys.plan(tables, devices, memory=memory, batch=32)
    except ArgumentError:
        return
    assert max(found.bytes) <= memory
    mesh = fg.make_mesh(devices, "d" if isinstance(devices, int) else ("n", "d"))
    shapes = {k: (t.rows, t.dim) for k, t in tables.items()}
    layout = recsys.layout(shapes, found.shardings, mesh)
    held = np.array(layout.bytes_per_device())
    assert (held <= np.array(found.bytes) + 1).all()
    assert found.shardings == {k: layout.spec(k).sharding for k in tables}


def test_on_paper_for_thousands_of_devices():
    tables = {f"t{i}": recsys.TableStats(10**9 // (i + 1), 64, 10.0) for i in range(200)}
    tables["huge"] = recsys.TableStats(10**12, 64, 1.0)
    found = recsys.plan(tables, (512, 8), memory=80e9, batch=64)
    assert found.shardings["huge"].kind == "row_wise"
    assert max(found.bytes) <= 80e9
    assert "and 4080 devices more" in str(found)


def test_what_is_allowed():
    tables = {"a": (1000, 16), "b": (1000, 16)}
    found = recsys.plan(tables, 4, memory=1e9, allowed={"a": ["column_wise"]})
    assert found.shardings["a"].kind == "column_wise"
    assert recsys.plan({}, 4, memory=1).step == 0
    mesh = fg.make_mesh((2, 2), ("node", "device"))
    assert recsys.plan(tables, mesh, memory=1e9, allowed=["grid"]).shardings["b"].kind == "grid"
    arrays = {"a": np.ones((10, 4), "float16")}
    assert max(recsys.plan(arrays, 1, memory=1e9).bytes) > 80


def test_as_text_and_picture():
    found = recsys.plan({"<ad>": (1000, 16)}, 2, memory=1e6, allowed=["table_wise"])
    assert recsys.plan_from_json(found.to_json()) == found
    assert json.loads(found.to_json())["shardings"]["<ad>"]["places"] == [0]
    assert "<ad>             table_wise on 0" in str(found)
    assert "none is better" in str(found)
    picture = found._repr_html_()
    assert "&lt;ad&gt;" in picture
    assert picture.count("<rect") == 6


def test_measured():
    found = recsys.measure_bandwidths(1)
    assert min(found.memory, found.link, found.between_nodes) > 1e6
    assert found.disk > 0


def test_kernels():
    tables = {"small": recsys.TableStats(4, 8, 20.0), "large": recsys.TableStats(10**6, 16, 20.0)}
    every = {"memory": 20e6, "batch": 512, "kernels": ("fused", "dense", "cached")}
    found = recsys.plan(tables, 1, **every)
    assert found.kernels["large"] == "cached"  # 68 MB don't fit
    assert max(found.bytes) <= 20e6
    assert "cached" in str(found)
    assert recsys.plan_from_json(found.to_json()) == found
    with pytest.raises(ArgumentError, match="no plan was found"):
        recsys.plan(tables, 1, memory=20e6)
    roomy = recsys.plan(tables, 1, memory=1e9, kernels=("fused", "dense", "cached"))
    assert set(roomy.kernels.values()) == {"fused"}
    dense = recsys.plan(tables, 1, memory=1e9, kernels={"small": ["dense"], "large": ["fused"]})
    assert dense.kernels == {"small": "dense", "large": "fused"}
    assert dense.shardings["small"].kind == "data_parallel"
    assert dense.step > roomy.step


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: recsys.plan({"a": (1000, 64)}, 2, memory=1e3), "no plan was found within 1000"),
        (lambda: recsys.plan({"a": (3,)}, 2, memory=1e9), "'a' must be \\(rows, dim\\)"),
        (lambda: recsys.plan({"a": (0, 3)}, 2, memory=1e9), "'a' has TableStats\\(rows=0"),
        (lambda: recsys.plan({"a": (3, 3)}, 0, memory=1e9), "devices must be a number"),
        (lambda: recsys.plan({"a": (3, 3)}, (1, 2, 3), memory=1e9), "devices must be a number"),
        (lambda: recsys.plan({"a": (3, 3)}, 2, memory=1e9, optimizer="x"), "must be one of"),
        (lambda: recsys.plan({"a": (3, 3)}, 2, memory=1e9, allowed=["x"]), "no sharding 'x'"),
        (lambda: recsys.plan({"a": (3, 3)}, 2, memory=1e9, allowed=["grid"]), "none of which fits"),
        (lambda: recsys.plan({"a": (3, 3)}, 2, memory=1e9, allowed={"b": []}), "allowed names 'b'"),
        (lambda: recsys.plan({"a": (3, 3)}, 2, memory=1e9, kernels=["x"]), "kernels must be of"),
        (lambda: recsys.plan({"a": (3, 3)}, 2, memory=1e9, kernels={"b": []}), "kernels names 'b'"),
        (lambda: recsys.plan_from_json("no"), "the text is no plan"),
        (lambda: recsys.plan_from_json('{"version": 2}'), "KeyError"),
    ],
)
def test_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


def test_rows_of_few_bits_take_their_bytes_and_no_backward_pass():
    shape, found = (10**6, 64), {}
    for dtype in ("float32", "bfloat16", "int8", "int4"):
        stats = recsys.TableStats(*shape, 20.0, dtype)
        plan = recsys.plan({"t": stats}, 1, memory=1e9, batch=8, allowed=["table_wise"])
        found[dtype] = plan.bytes[0], plan.step
    # Besides rows: what is exchanged; and where there is training a number a row.
    rest = found["int8"][0] - 10**6 * (64 + 4)
    assert 0 < rest < 1e4
    assert found["int4"][0] == rest + 10**6 * (32 + 4)
    assert found["bfloat16"][0] == rest + 10**6 * (128 + 4)
    assert found["int4"][1] <= found["int8"][1] < found["bfloat16"][1] < found["float32"][1]
    quantized = recsys.quantize_rows(np.ones((100, 6), "float32"), 4)
    plan = recsys.plan({"t": quantized}, 1, memory=1e6, allowed=["table_wise"], batch=1)
    assert plan.bytes[0] < 100 * 10
    with pytest.raises(ArgumentError, match="none of which fits"):
        recsys.plan({"t": quantized}, 1, memory=1e6, kernels=("dense",))
