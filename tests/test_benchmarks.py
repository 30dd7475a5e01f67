"""The benchmarks at tiny sizes, on funcgrad and NumPy alone: each case runs and is right."""

import json
import math
import re
import statistics

import numpy as np
import pytest

from benchmarks import __main__ as program
from benchmarks import compare, limits, plot, report, timing
from benchmarks.case import Case, draw, leaves, mapped, normal
from benchmarks.cases import all_cases, chosen, find
from benchmarks.libraries import Functional, NumPy, missing, to_numpy
from benchmarks.runner import Outcome, Runner, Settings
from benchmarks.worker import Bench, Worker, WorkerError

# The first call of these is a matter of seconds at any size; the others have their model.
SLOW = ("compile/GPT", "compile/CNN", "memory/GPT", "memory/CNN", "compile/gradient")
KEYS = [key for key in all_cases("tiny") if not key.startswith(SLOW)]


def results(library, case, times=1):
    call = library.call(case, library.inputs(case, case.inputs(np.random.default_rng(0))))
    return [to_numpy(x) for _ in range(times) for x in leaves(call())]


@pytest.fixture(scope="module")
def ours():
    return Functional("funcgrad")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("key", KEYS)
def test_case(key, ours):
    case = find(key, "tiny")
    got = results(ours, case, times=2)
    assert got
    for array in got:
        assert array.dtype.kind not in "fc" or np.isfinite(array.astype(np.complex128)).all()
    if case.numpy and "numpy" in case.compared:
        assert compare.difference(got, results(NumPy(), case, times=2), case.tolerance) is None


def test_both_sizes_have_the_same_cases():
    full, tiny = all_cases("full"), all_cases("tiny")
    assert list(full) == list(tiny)
    for key, case in full.items():
        assert case.measure == tiny[key].measure
        assert "torch" not in key


def test_choosing():
    assert {case.family for case in chosen(["gemm", "conv/"])} == {"gemm", "conv"}
    assert len(chosen([])) == len(all_cases())
    with pytest.raises(ValueError, match="no case contains 'nothing'; the families are calls, "):
        chosen(["gemm", "nothing"])
    with pytest.raises(ValueError, match="there are the sizes full, tiny, not 'huge'"):
        all_cases("huge")


def test_a_case_names_its_mistakes():
    make = {"family": "a", "name": "b", "inputs": draw(normal(2)), "work": lambda lib, x: x}
    with pytest.raises(ValueError, match="a/b: measure must be one of .*not 'speed'"):
        Case(**make, measure="speed")
    with pytest.raises(ValueError, match="a/b: torch and torch_make exclude each other"):
        Case(**make, torch=lambda t, x: x, torch_make=lambda t, compiled, x: lambda: x)


def test_which_libraries_have_a_text():
    case = find("calls/one array", "tiny")
    assert all(case.runs_on(name) for name in ("funcgrad", "jax", "torch", "compile", "numpy"))
    assert not find("eager/add", "tiny").runs_on("compile")
    assert not find("calls/state of 50 leaves, donated", "tiny").runs_on("torch")
    assert not find("compile/one operation, cold", "tiny").runs_on("torch")
    assert not find("attention/length 256", "tiny").runs_on("numpy")


def test_trees():
    tree = {"b": [1, (2, None)], "a": 0}
    assert leaves(tree) == [0, 1, 2]
    assert mapped(lambda x: x and x + 1, tree) == {"b": [2, (3, None)], "a": 0}


@pytest.mark.parametrize(
    ("got", "wanted", "words"),
    [
        ([[1.0, 2.0]], [[1.0, 2.00001]], None),
        ([[1.0, 2.0]], [[1.0, 2.1]], "result 0 differs at 1 of 2 elements, by up to 0.1 "),
        ([[1.0]], [[1.0], [2.0]], "1 results instead of 2"),
        ([[1.0]], [[1.0, 2.0]], r"result 0 has shape \(1,\) instead of \(2,\)"),
        ([[np.nan, 1.0]], [[np.nan, 1.0]], None),
        ([[np.nan, 1.0]], [[0.0, 1.0]], "differs at 1 of 2"),
        ([[1e-9, 1.0]], [[0.0, 1.0]], None),
        ([[]], [[]], None),
    ],
)
def test_difference(got, wanted, words):
    said = compare.difference(*([np.array(x) for x in xs] for xs in (got, wanted)), 1e-4)
    if words is None:
        assert said is None
    else:
        assert re.search(words, said)


def test_large_results_are_compared_by_a_sample():
    array = np.arange(1 << 17, dtype=np.float32)
    first, second = (compare.sample([array])[0] for _ in range(2))
    assert first.size == compare.SAMPLE
    assert np.array_equal(first, second)


def test_a_burst_times_calls(monkeypatch):
    calls = []
    # The clock of a machine on which nothing comes between: a call takes a microsecond.
    monkeypatch.setattr(timing.time, "perf_counter", lambda: 1e-6 * (len(calls) + 1))
    monkeypatch.setattr(timing, "SETTLING", 0.0)
    count = timing.calls_a_sample(lambda: calls.append(0))
    assert 90 < count < 250
    calls.clear()
    assert timing.burst(lambda: calls.append(0), 0.0, 7) == [pytest.approx(1e-6)]
    assert len(calls) == 14


def test_limits_are_positive():
    most = limits.measure(1, 0.0)
    assert most.reads > 0
    assert most.copies > 0
    assert most.flops > 0
    assert most.int8 > 0
    assert most.lines > 0
    most = limits.Limits(10.0, 10.0, 100.0, 400.0)
    assert most.seconds(200, 5, 5) == 2
    assert most.seconds(200, 5, 25) == 3
    assert most.seconds(200, 5, 5, "float64") == 4
    assert most.seconds(1200, 5, 5, "int8") == 3
    assert most._replace(lines=5.0).seconds(200, 5, 5, gathered=20) == 4
    # Writing takes what a copy takes beyond reading.
    assert limits.Limits(20.0, 10.0, 100.0, 400.0).seconds(0, 20, 20) == pytest.approx(4)
    assert limits.Limits(20.0, 10.0, 100.0, 400.0).seconds(0, 20, 0) == pytest.approx(1)


# ---- reports


def outcome(key="gemm/512", **samples):
    return Outcome(find(key), read=1000, written=4, samples=samples)


def test_ratios():
    one = outcome(funcgrad=[1.0, 2.0, 9.0], jax=[8.0], torch=[4.0], numpy=[0.1])
    assert report.ratio(one) == 2.0
    assert report.ratio(one, ("jax",)) == 4.0
    assert report.ratio(outcome(funcgrad=[1.0], numpy=[1.0])) is None
    assert report.ratio(outcome(jax=[1.0])) is None
    assert report.geometric_mean([1.0, 4.0, None]) == pytest.approx(2.0)
    assert report.geometric_mean([None]) is None
    two = outcome("memory/GPT step", funcgrad=[1.0], jax=[50.0])
    assert report.summary([one, two]) == [
        ("gemm", 1, pytest.approx(2.0), pytest.approx(4.0)),
        ("memory", 1, pytest.approx(50.0), pytest.approx(50.0)),
        ("all times", 1, pytest.approx(2.0), pytest.approx(4.0)),
    ]


def test_share_of_the_limit():
    most = limits.Limits(1e9, 1e9, 2 * 512**3, 2e9)
    assert report.share_of_limit(outcome(funcgrad=[2.0]), most) == pytest.approx(0.5)
    assert report.share_of_limit(outcome(funcgrad=[2e6]), most) is None
    assert report.share_of_limit(outcome("memory/GPT step", funcgrad=[1.0]), most) is None


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(2.5e-6, "s", "2.50 µs"), (0.0123, "s", "12.3 ms"), (432.0, "s", "432 s"),
     (5e-10, "s", "0.50 ns"), (123456789, "B", "123 MB"), (12, "B", "12.0 B")],
)  # fmt: skip
def test_quantity(value, unit, text):
    assert report.quantity(value, unit) == text


def test_files(tmp_path):
    most = limits.Limits(1e9, 1e9, 1e12, 1e12)
    outcomes = [outcome(funcgrad=[1.0], jax=[2.0]), outcome("sorting/sort, 1M", funcgrad=[1.0])]
    outcomes[1].fail("jax", WorkerError("ValueError: a | b", "Traceback …"))
    libraries = ["funcgrad", "jax"]
    facts = report.about(Settings(), ["funcgrad"], most)
    program.write(outcomes, tmp_path, libraries, facts, most)
    data = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [row["ratio"] for row in data["cases"]] == [2.0, None]
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "| 512 | 1.00 s | 2.00 s | 2.00 | 2.00 |  |" in text
    assert "| sorting/sort, 1M | JAX | ValueError: a \\| b |" in text
    assert "Traceback …" in (tmp_path / "failures.txt").read_text(encoding="utf-8")
    pytest.importorskip("matplotlib")
    assert (tmp_path / "cases.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "families.svg").exists()
    assert plot.save(outcomes[1:], tmp_path, "nothing to draw")


# ---- processes


def test_a_run(capsys, tmp_path):
    arguments = ["--size", "tiny", "--seconds", "0.01", "--rounds", "2", "--out", str(tmp_path)]
    arguments += ["--libraries", "numpy,funcgrad", "--only", "calls/one array,memory/one op"]
    assert program.main(arguments) == 0
    said = capsys.readouterr()
    assert "calls/one array" in said.out + said.err
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["cases"]
    assert [row["unit"] for row in rows] == ["s", "B"]
    for row in rows:
        assert set(row["results"]) == {"funcgrad", "numpy"}
        assert row["results"]["funcgrad"]["median"] > 0


def test_failures_are_told_and_the_rest_goes_on():
    settings = Settings(seconds=0.01, rounds=2, timeout=240.0, size="tiny")
    with Runner(["numpy", "nonsense"], settings) as runner:
        said = runner.measure(find("calls/one array", "tiny"))
    assert set(said.samples) == {"numpy"}
    assert "No module named 'nonsense'" in said.failures["nonsense"]


def test_a_worker_that_is_late_or_dies_is_replaced():
    worker = Worker("numpy", 1)
    try:
        with pytest.raises(WorkerError, match=r"took more than 0 s"):
            worker.ask(0.0, "open")
        with pytest.raises(WorkerError, match=r"KeyError: 'no/case'"):
            worker.ask(240.0, "prepare", "no/case", "tiny")
        worker._process.kill()
        worker._process.join()
        with pytest.raises(WorkerError, match=r"the process ended: SIGKILL"):
            worker.ask(240.0, "calibrate")
        worker.ask(240.0, "open")
    finally:
        worker.stop()


def test_what_a_worker_does():
    bench = Bench("numpy", 1)
    results, read, written = bench.prepare("calls/one array", "tiny")
    assert results[0].shape == (8,)
    assert (read, written) == (32, 32)
    assert bench.calibrate() >= 1
    assert statistics.median(bench.burst(0.0)) > 0
    assert math.isfinite(bench.first_call("calls/one array", "tiny"))
    assert bench.peak("calls/one array", "tiny") > 1 << 20


def test_what_is_missing_is_said(monkeypatch):
    assert missing("numpy") is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert missing("compile") == "torch is not installed (pip install torch)"
    monkeypatch.undo()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert (
        missing("compile") == "torch.compile needs a C++ compiler, and there is no no-such-compiler"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nothing"], "--only: no case contains 'nothing'"),
        (["--libraries", "funcgrad,x"], "--libraries x: there are funcgrad, jax"),
        (["--seconds", "0"], "--seconds must be more than 0, not 0.0"),
    ],
)
def test_bad_arguments(arguments, words, capsys):
    with pytest.raises(SystemExit):
        program.main(arguments)
    assert words in capsys.readouterr().err


def test_list(capsys):
    assert program.main(["--list", "--only", "gemm"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "gemm/512"
