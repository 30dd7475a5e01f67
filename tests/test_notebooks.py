"""Every notebook runs from top to bottom, and is committed in a state that readers want."""

from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
MAX_BYTES = 1_000_000


def read(path: Path):
    return nbformat.read(path, as_version=4)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path, monkeypatch):
    client = pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(path.parent.parent))
    book = read(path)
    run = client.NotebookClient(book, timeout=240, startup_timeout=240, kernel_name="python3")
    run.execute(cwd=path.parent)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_reads_well(path):
    book = read(path)
    nbformat.validate(book)
    assert path.stat().st_size < MAX_BYTES, "pictures make the file too large"
    assert book.cells[0].source.startswith("# "), "a notebook begins with its title"
    code = [c for c in book.cells if c.cell_type == "code"]
    counts = [c.execution_count for c in code]
    assert counts == list(range(1, len(code) + 1)), "run it from top to bottom before you commit it"
    for cell in code:
        assert len(cell.source.splitlines()) <= 30, f"a long cell: {cell.source[:60]!r}"
        assert not any(o.output_type == "error" for o in cell.outputs)
