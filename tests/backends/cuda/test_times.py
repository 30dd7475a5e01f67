"""Time on the device in profiles, by the stand-in's clock: a millisecond for each thing it does."""

import gzip
import json
from threading import Thread

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad import lax, profiler
from funcgrad.backends.cuda import times
from funcgrad.backends.cuda.devices.device import CudaError, Event
from funcgrad.backends.cuda.devices.memory import DeviceBuffer
from funcgrad.core.telemetry.spans import Recording
from tests.backends.cuda.simulated import numbers, softmax
from tests.backends.cuda.stand_in import on_fake


def steps(x):
    """A product and a kernel, in a loop, and a step of the host."""
    return fnp.linalg.eigvalsh(lax.fori_loop(0, 2, lambda i, v: softmax(v @ x), x))


def events_of(folder):
    (path,) = folder.rglob("*.trace.json.gz")
    found = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    return [e for e in found if e.get("cat") == "cuda"], names


@pytest.mark.parametrize("most", [times.MOST, 2], ids=["at the end", "meanwhile"])
def test_each_step_has_its_time(most, fake, gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(times, "MOST", most)
    x = numbers(8, 8)
    program = on_fake(steps, fake, gpu, x)
    given = DeviceBuffer.of(gpu, x)
    want = program([given])[0].get()
    with profiler.trace(tmp_path):
        for _ in range(2):
            np.testing.assert_array_equal(program([given])[0].get(), want)
    found, names = events_of(tmp_path)
    found = [e for e in found if not e["name"].startswith("copy of")]
    shown = [e["name"] for e in sorted(found, key=lambda e: e["ts"])]
    assert shown[:6] == shown[6:]
    assert shown[0] == shown[2] == "product 8x8x8 of float32"
    assert shown[1] == shown[3] in {launch.name for launch in program.kernels.launches}
    assert shown[5] == "eigh"
    assert {names[e["tid"]] for e in found} == {"cuda:0"}
    assert {e["args"]["program"] for e in found} == {"steps"}
    assert all(e["dur"] == 1000 for e in found if e["name"] != "eigh")


def test_threads_lose_no_steps(fake, gpu):
    recording = Recording()
    found = times.Times(gpu.driver, recording)
    event = Event(gpu.driver, timed=True)
    event.record(gpu.driver.stream)
    marks = [times.Mark("step", event, False)] * 2

    def add():
        for i in range(200):
            found.add("p", marks)
            if i % 10 == 0:
                gpu.driver.enter()
                found.settle()

    threads = [Thread(target=add) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    found.settle()
    assert len(recording.spans) == 800


def test_threads_share_one_clock(fake, gpu, monkeypatch):
    recording, made = Recording(), list[times.Times | None]()
    init = times.Times.__init__

    def meanwhile(self, driver, recording):
        init(self, driver, recording)
        if not made:
            made.append(self)
            made.append(times.times_of(driver))  # as another thread may

    monkeypatch.setattr(times.Times, "__init__", meanwhile)
    monkeypatch.setattr(times, "recordings", [recording])
    assert times.times_of(gpu.driver) is made[1] is times.times_of(gpu.driver)


def test_durations_are_told_by_a_steps_own_events(fake, gpu, monkeypatch):
    recording = Recording()
    found = times.Times(gpu.driver, recording)
    events = [Event(gpu.driver, timed=True) for _ in range(2)]
    for e in events:
        e.record(gpu.driver.stream)
    # After an hour neighbouring float32 milliseconds are a quarter apart.
    monkeypatch.setattr(Event, "since", lambda self, other: 0.125 if other in events else 3.6e6)
    found.add("p", [times.Mark("step", e, False) for e in events])
    found.settle()
    (span,) = recording.spans
    assert span.end - span.start == 125_000


def test_a_failed_programs_own_error_is_told(fake, gpu, tmp_path, monkeypatch):
    def broken(self, *args):
        raise AssertionError("times of a program that failed")

    x = numbers(8, 8)
    program = on_fake(softmax, fake, gpu, x)
    given = DeviceBuffer.of(gpu, x)
    with profiler.trace(tmp_path):
        fake.fake_break(719)
        monkeypatch.setattr(times.Times, "add", broken)
        with pytest.raises(CudaError, match="CUDA_ERROR_LAUNCH_FAILED"):
            program([given])
        fake.fake_break(0)


def test_graphs_go_on_after_a_profile(fake, gpu, tmp_path):
    x = numbers(8, 8)
    program = on_fake(softmax, fake, gpu, x)
    given = DeviceBuffer.of(gpu, x)
    for _ in range(2):
        program([given])
    replays = fake.fake_replays()
    with profiler.trace(tmp_path):
        program([given])
        assert fake.fake_replays() == replays
    program([given])
    assert fake.fake_replays() == replays + 1
    events = []
    for i in range(4):
        with profiler.trace(tmp_path / str(i)):
            program([given])
        events.append(fake.fake_events())
    assert events[-1] == events[1]  # they come again


def test_what_the_host_did_is_written_though_the_device_is_lost(fake, gpu, tmp_path):
    x = numbers(8, 8)
    program = on_fake(softmax, fake, gpu, x)
    profiler.start_trace(tmp_path)
    with profiler.TraceAnnotation("load"):
        program([DeviceBuffer.of(gpu, x)])
    fake.fake_break(719)
    with pytest.raises(CudaError, match="CUDA_ERROR_LAUNCH_FAILED"):
        profiler.stop_trace()
    fake.fake_break(0)
    (path,) = tmp_path.rglob("*.trace.json.gz")
    assert '"load"' in gzip.decompress(path.read_bytes()).decode()
    assert not profiler.TraceAnnotation.is_enabled()
