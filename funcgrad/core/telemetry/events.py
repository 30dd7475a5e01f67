"""Events that the package tells of, and who listens to them: `jax.monitoring`.

Events have names like paths, and labels. Besides those that users record there are, in seconds:

- `/funcgrad/core/compile/jaxpr_trace_duration`: `jit` traced a function, `fun_name`
- `/funcgrad/core/compile/backend_compile_duration`: a program was compiled, or found on disk
- `/funcgrad/compilation_cache/cache_retrieval_time_sec`: a program was found on disk

and `/funcgrad/compilation_cache/` `compile_requests_use_cache`, `cache_hits`, `cache_misses`.
"""

from __future__ import annotations

from collections.abc import Callable

Label = str | int | float
Listener = Callable[..., None]

_events: list[Listener] = []
_durations: list[Listener] = []
_time_spans: list[Listener] = []
_scalars: list[Listener] = []


def _listening(what: str, listeners: list[Listener], callback: Listener) -> None:
    if not callable(callback):
        raise TypeError(f"{what}: callback must be a function, got {callback!r}")
    listeners.append(callback)


def _leaving(what: str, listeners: list[Listener], callback: Listener) -> None:
    if callback not in listeners:
        raise ValueError(f"{what}: {callback!r} isn't registered")
    listeners.remove(callback)


def record_event(event: str, **kwargs: Label) -> None:
    """Tell those who listen that something happened; kwargs are labels.

    >>> record_event("/mine/restart", reason="new data")
    """
    for listener in tuple(_events):
        listener(event, **kwargs)


def record_event_duration_secs(event: str, duration: float, **kwargs: Label) -> None:
    """Tell those who listen how many seconds something took.

    >>> record_event_duration_secs("/mine/load", 0.25)
    """
    for listener in tuple(_durations):
        listener(event, duration, **kwargs)


def record_event_time_span(event: str, start_time: float, end_time: float, **kwargs: Label) -> None:
    """Tell those who listen when something began and ended, in seconds.

    >>> record_event_time_span("/mine/load", 10.0, 10.25)
    """
    for listener in tuple(_time_spans):
        listener(event, start_time, end_time, **kwargs)


def record_scalar(event: str, value: float, **kwargs: Label) -> None:
    """Tell those who listen of a number.

    >>> record_scalar("/mine/queue_length", 3)
    """
    for listener in tuple(_scalars):
        listener(event, value, **kwargs)


def register_event_listener(callback: Listener) -> None:
    """Let callback(event, **labels) be called at each `record_event`; what it raises, who recorded
    the event gets.

    >>> heard = []
    >>> listener = lambda event, **labels: heard.append((event, labels))
    >>> register_event_listener(listener)
    >>> record_event("/mine/restart", reason="new data")
    >>> unregister_event_listener(listener)
    >>> heard
    [('/mine/restart', {'reason': 'new data'})]
    """
    _listening("register_event_listener", _events, callback)


def register_event_duration_secs_listener(callback: Listener) -> None:
    """Let callback(event, seconds, **labels) be called at each `record_event_duration_secs`.

    >>> compiled = []
    >>> def listener(event, seconds, **labels):
    ...     if event.endswith("backend_compile_duration"):
    ...         compiled.append(labels["fun_name"])
    >>> register_event_duration_secs_listener(listener)
    >>> _ = fg.jit(lambda x: x + 1)(1.0)
    >>> unregister_event_duration_listener(listener)
    >>> compiled
    ['<lambda>']
    """
    _listening("register_event_duration_secs_listener", _durations, callback)


def register_event_time_span_listener(callback: Listener) -> None:
    """Let callback(event, start, end, **labels) be called at each `record_event_time_span`.

    >>> register_event_time_span_listener(print)
    >>> record_event_time_span("/mine/load", 1.0, 2.0)
    /mine/load 1.0 2.0
    >>> unregister_event_time_span_listener(print)
    """
    _listening("register_event_time_span_listener", _time_spans, callback)


def register_scalar_listener(callback: Listener) -> None:
    """Let callback(event, value, **labels) be called at each `record_scalar`.

    >>> register_scalar_listener(print)
    >>> record_scalar("/mine/queue_length", 3)
    /mine/queue_length 3
    >>> unregister_scalar_listener(print)
    """
    _listening("register_scalar_listener", _scalars, callback)


def unregister_event_listener(callback: Listener) -> None:
    """Let a function that `register_event_listener` got be called no longer; ValueError for others.

    >>> unregister_event_listener(print)
    Traceback (most recent call last):
    ...
    ValueError: unregister_event_listener: <built-in function print> isn't registered
    """
    _leaving("unregister_event_listener", _events, callback)


def unregister_event_duration_listener(callback: Listener) -> None:
    """As `unregister_event_listener`, of `register_event_duration_secs_listener`.

    >>> register_event_duration_secs_listener(print)
    >>> unregister_event_duration_listener(print)
    """
    _leaving("unregister_event_duration_listener", _durations, callback)


def unregister_event_time_span_listener(callback: Listener) -> None:
    """As `unregister_event_listener`, of `register_event_time_span_listener`.

    >>> register_event_time_span_listener(print)
    >>> unregister_event_time_span_listener(print)
    """
    _leaving("unregister_event_time_span_listener", _time_spans, callback)


def unregister_scalar_listener(callback: Listener) -> None:
    """As `unregister_event_listener`, of `register_scalar_listener`.

    >>> register_scalar_listener(print)
    >>> unregister_scalar_listener(print)
    """
    _leaving("unregister_scalar_listener", _scalars, callback)


def clear_event_listeners() -> None:
    """Let nobody listen any longer.

    >>> clear_event_listeners()
    """
    for listeners in (_events, _durations, _time_spans, _scalars):
        listeners.clear()
