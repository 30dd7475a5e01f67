"""Profiles of calls, compilations and annotations: what is in them, and whether spans nest."""

import gzip
import itertools
import json
import os
import threading
from pathlib import Path

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import profiler
from funcgrad.core.telemetry import spans


def taken(folder, name="*.trace.json.gz"):
    """The one profile below a folder, and its spans by name."""
    (path,) = Path(folder).rglob(name)
    assert path.parent.parent == Path(folder) / "plugins" / "profile"
    found = json.loads(gzip.decompress(path.read_bytes()))
    events = [e for e in found["traceEvents"] if e["ph"] == "X"]
    return found, {e["name"]: e for e in events}, events


def within(inner, outer):
    start, end = outer["ts"], outer["ts"] + outer["dur"]
    return start <= inner["ts"] and inner["ts"] + inner["dur"] <= end + 0.01


def test_calls_and_stages_of_compiling(tmp_path):
    @fg.jit
    def shifted(x):
        return fnp.sin(x) * 3.25 + 1.5

    x = fnp.arange(5.0)
    with profiler.trace(tmp_path):
        want = shifted(x)
        for _ in range(3):
            shifted(x)
    assert want.tolist() == shifted(x).tolist()
    found, by_name, events = taken(tmp_path)
    assert found["otherData"] == {"dropped_spans": 0}
    assert [e["name"] for e in events].count("jit(shifted)") == 4
    first = next(e for e in events if e["name"] == "jit(shifted)")
    for name in ("trace shifted", "compile shifted", "plan", "kernels", "program"):
        assert within(by_name[name], first), name
        assert by_name[name]["cat"] == "compile"
    assert by_name["trace shifted"]["args"] == {"what": "3 operations"}
    assert within(by_name["plan"], by_name["compile shifted"])
    assert "f32[5]" in by_name["compile shifted"]["args"]["signature"]


def test_labels_of_any_name_and_a_file_for_each_process(tmp_path):
    with profiler.trace(tmp_path), profiler.TraceAnnotation("load", start=3, category="a") as span:
        span.set_metadata(name="x")
    assert taken(tmp_path)[1]["load"]["args"] == {"start": 3, "category": "a", "name": "x"}
    (path,) = tmp_path.rglob("*.trace.json.gz")
    assert f".{os.getpid()}." in path.name


def test_annotations_nest_in_each_thread(tmp_path):
    @profiler.annotate_function
    def load():
        with profiler.TraceAnnotation("read", file="a") as span:
            span.set_metadata(rows=3)

    def work():
        for step in range(2):
            with profiler.StepTraceAnnotation("train", step_num=step):
                load()

    with profiler.trace(str(tmp_path), create_perfetto_trace=True):
        assert profiler.TraceAnnotation.is_enabled()
        threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert not profiler.TraceAnnotation.is_enabled()
    work()  # of no profile
    found, by_name, events = taken(tmp_path)
    assert (found, by_name, events) == taken(tmp_path, "perfetto_trace.json.gz")
    named = {e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert named == {"worker 0", "worker 1"}
    assert len(events) == 12
    assert by_name["read"]["args"] == {"file": "a", "rows": 3}
    assert {e["args"]["step_num"] for e in events if e["name"] == "train"} == {0, 1}
    for _, group in itertools.groupby(events, lambda e: e["tid"]):
        ends: list = []
        for e in group:  # as viewers do: each span ends in the one that it began in
            while ends and ends[-1] <= e["ts"]:
                ends.pop()
            assert not ends or e["ts"] + e["dur"] <= ends[-1] + 0.01
            ends.append(e["ts"] + e["dur"])


def test_a_call_that_fails_is_shown(tmp_path):
    @fg.jit
    def broken(x):
        raise KeyError("inside")

    with profiler.trace(tmp_path), pytest.raises(KeyError, match="inside"):
        broken(1.0)
    assert "jit(broken)" in taken(tmp_path)[1]


def test_too_many_spans_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(spans, "MOST_SPANS", 2)
    with profiler.trace(tmp_path):
        for _ in range(5):
            with profiler.TraceAnnotation("many"):
                pass
    found, _, events = taken(tmp_path)
    assert len(events) == 2
    assert found["otherData"] == {"dropped_spans": 3}


def test_bad_calls(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match="stop_trace: no profile is being taken"):
        profiler.stop_trace()
    with pytest.raises(NotADirectoryError):
        profiler.start_trace(tmp_path / "file")
    with pytest.raises(ValueError, match=r"create_perfetto_link=True.*ui\.perfetto\.dev"):
        profiler.start_trace(tmp_path, create_perfetto_link=True)
    with pytest.raises(ValueError, match="profiler_options must be None, got 3"):
        profiler.start_trace(tmp_path, profiler_options=3)
    with profiler.trace(tmp_path), pytest.raises(RuntimeError, match="is being taken already"):
        profiler.start_trace(tmp_path)
    with pytest.raises(TypeError, match="TraceAnnotation: name must be a text, got 3"):
        profiler.TraceAnnotation(3)
    with pytest.raises(TypeError, match="annotate_function: need a function, got 3"):
        profiler.annotate_function(3)
