import operator

import pytest

from funcgrad.backends.llvm.gemm.trial import Facts, Known, Trial


def test_conditions_that_fail_leave_no_trace():
    job = Facts(m=Known(3), n=Known(5))
    trial = Trial(job)
    with trial.when(job["m"] > job["n"]):
        job["m"], job["n"] = job["n"], job["m"]
        trial.call("swapped")
    assert (job["m"].value, job["n"].value) == (3, 5)
    with trial.when(job["m"] < job["n"]):
        job["m"] = 7
        trial.call("set")
    with trial.either(job["m"].eq(7)) as (yes, no):
        with yes:
            trial.call("seven")
        with no:
            trial.call("other")
            job["n"] = 0
    assert trial.calls == ["set", "seven"]
    assert (job["m"].value, job["n"].value) == (7, 5)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod", "lt", "le", "gt", "ge"])
def test_operators(name):
    op = getattr(operator, name)
    for x, y in ((7, 3), (0, 5), (4, 4)):
        assert op(Known(x), y).value == op(Known(x), Known(y)).value == op(x, y)


def test_division_has_no_signs():
    assert (Known(-1) // 2).value == 2**63 - 1
    assert (Known(-1) % 10).value == (2**64 - 1) % 10


def test_choices():
    assert Known(True).select(1, Known(2)).value == 1
    assert Known(3).ceil_div(2).value == 2
    assert (5 - Known(3)).value == 2
    assert Known(3).min(2).value == 2
    assert Known(3).max(Known(9)).value == 9
    assert not (Known(1) & Known(0))
    assert Known(1) | Known(0)
    assert not ~Known(1)
    assert Known(3).ne(4)
