"""Files of earlier versions load, and give what they gave, up to other processors' roundings."""

import numpy as np
import pytest

from funcgrad import export
from tests.export.golden_files import FOLDER, rows
from tests.op_samples_base import assert_close

FILES = sorted(FOLDER.glob("*.fg"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_old_files_give_what_they_gave(path):
    loaded = export.load(path)
    (sample,) = loaded.samples
    found = loaded.jaxpr(*sample.args)
    for got, want in zip(found, sample.results, strict=True):
        assert_close(np.asarray(got), want, ulps=256, atol=256)


def test_each_op_is_in_a_file():
    loaded = [export.load(path) for path in FILES]
    texts = "\n".join(repr(f.jaxpr) for f in loaded)
    absent = [r.prim.name for r in rows() if r.staged and f" {r.prim.name}" not in texts]
    assert not absent, f"python -m tests.export.golden_files NAME, for {absent}"
