"""examples/any_mesh.py, pipeline.py and long_context.py in small, on virtual devices and by mpiexec
-n 4: losses don't depend on the mesh."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parallel.ranks import environment, missing, mpiexec

EXAMPLES = Path(__file__).parent.parent / "examples"
FEW = ["--steps", "3"]
LAST = re.compile(r"loss (\S+)")


def on_four_ranks(name, *args, cwd=None):
    """What an example says."""
    if reason := missing():
        pytest.skip(reason)
    command = [mpiexec(), "-n", "4", sys.executable, str(EXAMPLES / name), *args]
    done = subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def any_mesh():
    sys.path.insert(0, str(EXAMPLES))
    import any_mesh

    yield any_mesh
    sys.path.remove(str(EXAMPLES))


@pytest.mark.long
def test_losses_do_not_depend_on_the_mesh(any_mesh):
    one, many = (
        any_mesh.main([*FEW, "--model", "llama", "--mesh", *axes])
        for axes in (["fsdp=1"], ["cp=2", "pp=2"])
    )
    assert many == pytest.approx(one, rel=1e-4)


def test_bad_meshes(any_mesh, capsys):
    with pytest.raises(SystemExit):
        any_mesh.main(["--mesh", "dp=2"])
    assert "--mesh takes AXIS=SIZE with axes pp, fsdp, cp, ep, tp" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.mpi
def test_examples_by_mpiexec(any_mesh, tmp_path):
    """All examples of this kind; any_mesh has the losses of virtual devices."""
    args = [*FEW, "--model", "moe", "--mesh", "fsdp=2", "ep=2"]
    found = float(LAST.findall(on_four_ranks("any_mesh.py", *args))[-1])
    assert found == pytest.approx(any_mesh.main(args)[-1], abs=2e-3)
    small = ["--batch", "4", "--width", "16", "--layers", "4", "--microbatches", "4"]
    assert "rank 3: " in on_four_ranks("pipeline.py", "--steps", "2", *small)
    said = on_four_ranks("long_context.py", *FEW, "--context", "64", "--out", str(tmp_path))
    assert len(LAST.findall(said)) == 2
    assert (tmp_path / "long_context.png").exists()
