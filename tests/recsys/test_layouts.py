"""Where rows lie: each table's every element once, uneven blocks, and what is refused."""

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import recsys
from funcgrad.errors import ArgumentError, ShardingError

LINE = fg.make_mesh(4, "device")
GRID = fg.make_mesh((2, 2), ("node", "device"))
KINDS = ["data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise",
         "table_column_wise", "grid"]  # fmt: skip
TABLES = {"ad": (10, 4), "page": (5, 4), "user": (17, 5)}


def arrays(dtype="float32"):
    rng = np.random.default_rng(0)
    return {k: rng.normal(size=s).astype(dtype) for k, s in TABLES.items()}


@pytest.mark.parametrize("mesh", [LINE, GRID], ids=["line", "grid"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_put_is_found_again(kind, mesh):
    if mesh is LINE and kind in ("table_row_wise", "table_column_wise", "grid"):
        with pytest.raises(ShardingError, match=f"'ad': {kind} needs a mesh of nodes"):
            recsys.layout(TABLES, getattr(recsys, kind)(), mesh)
        return
    layout = recsys.layout(TABLES, getattr(recsys, kind)(), mesh)
    tables = arrays()
    placed = recsys.shard_tables(tables, layout)
    for k, x in recsys.gather_tables(placed).items():
        np.testing.assert_array_equal(x, tables[k])
    total = sum(x.nbytes for x in tables.values())
    copies = 4 if kind == "data_parallel" else 1
    assert sum(layout.bytes_per_device()) == copies * total
    assert hash(layout) == hash(recsys.layout(TABLES, getattr(recsys, kind)(), mesh))


@pytest.mark.parametrize(("rows", "blocks"), [(10, [3, 3, 3, 1]), (5, [2, 2, 1, 0])])
def test_rows_in_uneven_blocks(rows, blocks):
    layout = recsys.layout({"ad": (rows, 1)}, recsys.row_wise(), LINE)
    assert layout.bytes_per_device() == [4 * n for n in blocks]


def test_places_are_those_asked_for_or_the_emptiest():
    cuts = {"ad": recsys.table_wise(3), "page": recsys.table_wise(), "user": recsys.table_wise()}
    layout = recsys.layout(TABLES, cuts, LINE)
    assert layout.spec("ad").sharding.places == (3,)
    assert len({layout.spec(k).sharding.places for k in TABLES}) == 3
    cuts = recsys.table_column_wise(devices=[3, 2])
    layout = recsys.layout({"ad": (3, 4)}, cuts, GRID)
    assert layout.bytes_per_device() == [0, 0, 24, 24]
    layout = recsys.layout({"ad": (4, 4)}, recsys.grid(nodes=[1, 0]), GRID)
    assert layout.bytes_per_device() == [16] * 4


def test_tables_of_one_width_share_a_pool():
    layout = recsys.layout({"a": (3, 4), "b": (5, 4), "c": (2, 8)}, recsys.row_wise(), LINE)
    assert [name for name, _ in layout.pools] == ["row_4_float32", "row_8_float32"]
    half = {k: x.astype("float16") for k, x in arrays().items()}
    names = [name for name, _ in recsys.layout(half, recsys.row_wise(), LINE).pools]
    assert names == ["row_4_float16", "row_5_float16"]


def test_refused():
    cases = [
        ({"ad": (3,)}, recsys.row_wise(), LINE, "table 'ad' must be \\(rows, dim\\)"),
        ({"ad": (0, 3)}, recsys.row_wise(), LINE, "table 'ad' must be \\(rows, dim\\)"),
        (TABLES, {"ad": recsys.row_wise()}, LINE, "shardings are for \\['ad'\\]"),
        (TABLES, recsys.table_wise(4), LINE, "'ad' is put on 4, but there are 4 devices"),
        (TABLES, recsys.table_row_wise(2), GRID, "'ad' is put on 2, but there are 2 nodes"),
        (TABLES, recsys.table_column_wise(devices=[1, 2]), GRID, "are not of one node"),
        (TABLES, recsys.column_wise(5), LINE, "'ad' has 4 columns, which can't be cut into 5"),
        (TABLES, recsys.TableSharding("odd"), LINE, "has the sharding"),
        (TABLES, recsys.row_wise(), fg.make_mesh((2, 2, 1), tuple("abc")), "one axis or two"),
    ]
    for tables, cuts, mesh, words in cases:
        with pytest.raises(ShardingError, match=words):
            recsys.layout(tables, cuts, mesh)
    layout = recsys.layout(TABLES, recsys.row_wise(), LINE)
    with pytest.raises(ShardingError, match="the layout has a table 'ad' of \\(10, 4\\), got None"):
        recsys.shard_tables({}, layout)
    small = {"ad": recsys.quantize_rows(np.ones((10, 4), "float32"), 4)}
    with pytest.raises(ShardingError, match="4 columns of 4 bits, which can't be cut into 3"):
        recsys.layout(small, recsys.column_wise(3), LINE)
    layout = recsys.layout({"ad": (10, 4)}, recsys.row_wise(), LINE)
    with pytest.raises(ShardingError, match="a table 'ad' of float32, got one of int4"):
        recsys.shard_tables(small, layout)
    layout = recsys.layout(small, recsys.row_wise(), LINE)
    with pytest.raises(ShardingError, match="a table 'ad' of int4, got one of float64"):
        recsys.shard_tables({"ad": np.ones((10, 4))}, layout)
    with pytest.raises(ArgumentError, match="no table 'x' among"):
        layout.spec("x")


def test_a_layout_shows_itself():
    shapes = {"a<b": (10, 4), "small": (2, 4)}
    cuts = {"a<b": recsys.row_wise(), "small": recsys.data_parallel()}
    picture = recsys.layout(shapes, cuts, fg.make_mesh(4, "device"))._repr_html_()
    assert picture.count("<rect") == 8
    assert "<title>a&lt;b: 16 bytes</title>" in picture  # the last device's one row
    assert "row_wise" in picture
