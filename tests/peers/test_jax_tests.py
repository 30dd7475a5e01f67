"""The tests of JAX and of HIPS autograd, from checkouts that FUNCGRAD_JAX_TESTS and
FUNCGRAD_AUTOGRAD_TESTS name: most of them pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import jax_tests  # noqa: E402

FILES = ["lax_numpy_operators_test", "scipy_stats_test"]


@pytest.mark.parametrize(
    ("suite", "files", "share"), [("jax", FILES, 0.9), ("autograd", ["test_scalar_ops"], 0.95)]
)
def test_tests_of_others(suite, files, share, tmp_path):
    variable = f"FUNCGRAD_{suite.upper()}_TESTS"
    if variable not in os.environ:
        pytest.skip(f"{variable} names no checkout")
    tool = [sys.executable, str(ROOT / "tools" / "jax_tests.py")]
    command = [*tool, "run", os.environ[variable], str(tmp_path), "--suite", suite, "--files"]
    subprocess.run([*command, *files], check=True)
    table, failed = jax_tests.compare(tmp_path, suite)
    passed, total = (sum(r[i] for r in table.values()) for i in (0, 1))
    assert total
    assert passed >= share * total, dict(failed)


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("testX12_a=1", "testX"),
        ("test_select_shape=3", "test_select"),
        ("a_test.py::Class::test_repr", "test_repr"),
        ("testX3_in_axes=0", "testX"),
        ("test_x[1-2]", "test_x"),
    ],
)
def test_names_without_parameters(test, name):
    assert jax_tests._bare(test) == name
