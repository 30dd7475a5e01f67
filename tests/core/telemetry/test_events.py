"""Events: who listens hears of compilations and of what users record."""

import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import monitoring


@pytest.fixture
def heard():
    found = []
    listeners = [
        (monitoring.register_event_listener, monitoring.unregister_event_listener),
        (
            monitoring.register_event_duration_secs_listener,
            monitoring.unregister_event_duration_listener,
        ),
        (
            monitoring.register_event_time_span_listener,
            monitoring.unregister_event_time_span_listener,
        ),
        (monitoring.register_scalar_listener, monitoring.unregister_scalar_listener),
    ]

    def listener(*args, **labels):
        found.append((args, labels))

    for register, _ in listeners:
        register(listener)
    yield found
    for _, unregister in listeners:
        unregister(listener)


def test_what_users_record(heard):
    monitoring.record_event("/a", x=1)
    monitoring.record_event_duration_secs("/b", 0.5, y="z")
    monitoring.record_event_time_span("/c", 1.0, 2.0)
    monitoring.record_scalar("/d", 3.0, n=2)
    assert heard == [
        (("/a",), {"x": 1}), (("/b", 0.5), {"y": "z"}), (("/c", 1.0, 2.0), {}),
        (("/d", 3.0), {"n": 2}),
    ]  # fmt: skip


def test_compilations(heard):
    @fg.jit
    def tripled(x):
        return x * 3 + 0.375

    x = fnp.arange(4.0)
    tripled(x)
    durations = {args[0]: args[1] for args, labels in heard if labels == {"fun_name": "tripled"}}
    stages = ("jaxpr_trace_duration", "backend_compile_duration")
    assert set(durations) == {f"/funcgrad/core/compile/{s}" for s in stages}
    assert all(s > 0 for s in durations.values())
    names = [args[0].removeprefix("/funcgrad/compilation_cache/") for args, _ in heard]
    if "compile_requests_use_cache" in names:  # where programs are kept on disk
        assert names.count("cache_hits") + names.count("cache_misses") == 1
        assert ("cache_retrieval_time_sec" in names) == ("cache_hits" in names)
    heard.clear()
    tripled(x)
    assert not heard


def test_listeners_leave_and_errors_reach_who_records():
    def fails(event):
        raise RuntimeError(f"no {event}")

    monitoring.register_event_listener(fails)
    with pytest.raises(RuntimeError, match="no /a"):
        monitoring.record_event("/a")
    monitoring.unregister_event_listener(fails)
    monitoring.record_event("/a")
    with pytest.raises(ValueError, match="unregister_event_listener: .*isn't registered"):
        monitoring.unregister_event_listener(fails)
    with pytest.raises(TypeError, match="register_scalar_listener: callback must be a function"):
        monitoring.register_scalar_listener(3)
    monitoring.register_event_listener(fails)
    monitoring.clear_event_listeners()
    monitoring.record_event("/a")
