"""The backend that runs ops one by one."""

import numpy as np

from funcgrad.backends.numpy_eval import BACKEND
from funcgrad.core.staging import stage
from funcgrad.core.trace import aval_of
from funcgrad.ops.families import add


def test_it_runs_and_tells_what_it_needs():
    x = np.ones(4, np.float32)
    jaxpr, _ = stage(lambda x: [add.bind(x, x)], [aval_of(x)])
    compiled = BACKEND.compile(jaxpr, [False], "f")
    assert compiled([x])[0].tolist() == [2, 2, 2, 2]
    assert compiled.memory_analysis()["argument_size_in_bytes"] == 16
    assert compiled.cost_analysis() == {"bytes accessed": 48.0}
    assert "add" in compiled.as_text("jaxpr")
