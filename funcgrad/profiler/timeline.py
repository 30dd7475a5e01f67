"""A time line of calls, compilations and annotations, as Chrome's trace format has it.

Perfetto (https://ui.perfetto.dev) and chrome://tracing open the file; TensorBoard finds it by its
place, `plugins/profile/<time>/<host>.<process>.trace.json.gz`, one for each rank of a job. The
format: "Trace Event Format", Google 2016.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Self, TypeVar

from funcgrad.core.process import fork
from funcgrad.core.telemetry.spans import Recording, record, recordings

_F = TypeVar("_F", bound=Callable)
_lock = fork.lock()


def start_trace(
    log_dir: str | os.PathLike,
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: None = None,
) -> None:
    """Begin a profile, which `stop_trace` writes below the folder `log_dir`.

    In it are calls of compiled functions, the stages of compiling them, and what `TraceAnnotation`
    names, for each thread; of GPUs each kernel and each call of a library, as long as the device
    took, as their programs run without graphs meanwhile.

    create_perfetto_trace: write `perfetto_trace.json.gz`, too. create_perfetto_link,
    profiler_options: False and None, as nothing is served, and there is nothing to choose. Raises
    RuntimeError if a profile is being taken, OSError if the folder can't be made.

    >>> import tempfile
    >>> fg.profiler.start_trace(tempfile.mkdtemp())
    >>> fg.profiler.stop_trace()
    """
    if create_perfetto_link:
        raise ValueError(
            "profiler.start_trace: create_perfetto_link=True isn't supported: open the file at "
            "https://ui.perfetto.dev, which reads it in the browser"
        )
    if profiler_options is not None:
        raise ValueError(
            f"profiler.start_trace: profiler_options must be None, got {profiler_options!r}"
        )
    with _lock:
        if recordings:
            raise RuntimeError(
                "profiler.start_trace: a profile is being taken already; stop_trace ends it"
            )
        folder = Path(log_dir) / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
        folder.mkdir(parents=True, exist_ok=True)
        recording = Recording()
        own = f"{socket.gethostname()}.{os.getpid()}"
        names = [f"{own}.trace.json.gz", *["perfetto_trace.json.gz"] * create_perfetto_trace]
        _files[:] = [folder / name for name in names]
        recordings.append(recording)


_files: list[Path] = []  # of the profile that is being taken


def stop_trace() -> None:
    """End the profile that `start_trace` began, and write it. Raises RuntimeError if there is none.

    >>> fg.profiler.stop_trace()
    Traceback (most recent call last):
    ...
    RuntimeError: profiler.stop_trace: no profile is being taken; start_trace begins one
    """
    with _lock:
        if not recordings:
            raise RuntimeError(
                "profiler.stop_trace: no profile is being taken; start_trace begins one"
            )
        recording = recordings.pop()
        files = list(_files)
    sources = list(recording.sources.values())
    recording.sources.clear()  # which know the recording
    try:
        for source in sources:
            source.settle()
    finally:  # what is known of the host is written though a device is lost
        text = json.dumps(chrome_trace(recording)).encode()
        for file in files:
            file.write_bytes(gzip.compress(text, 6))


@contextmanager
def trace(
    log_dir: str | os.PathLike,
    create_perfetto_link: bool = False,
    create_perfetto_trace: bool = False,
    profiler_options: None = None,
) -> Iterator[None]:
    """A block of which a profile is taken; see `start_trace`.

    >>> import gzip, json, pathlib, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with fg.profiler.trace(folder):
    ...     with fg.profiler.TraceAnnotation("load", file="a"):
    ...         pass
    >>> (path,) = pathlib.Path(folder).rglob("*.trace.json.gz")
    >>> [e["name"] for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]][-1]
    'load'
    """
    start_trace(log_dir, create_perfetto_link, create_perfetto_trace, profiler_options)
    try:
        yield
    finally:
        stop_trace()


class TraceAnnotation:
    """A block that a profile shows under a name, with labels.

    >>> with fg.profiler.TraceAnnotation("load", file="a"):
    ...     pass
    """

    def __init__(self, name: str, **kwargs: Any):
        if not isinstance(name, str):
            raise TypeError(f"{type(self).__name__}: name must be a text, got {name!r}")
        self._name, self._labels = name, kwargs
        self._began = 0

    @staticmethod
    def is_enabled() -> bool:
        """Whether a profile is being taken."""
        return bool(recordings)

    def set_metadata(self, **kwargs: Any) -> None:
        """Add labels, within the block."""
        self._labels = self._labels | kwargs

    def __enter__(self) -> Self:
        self._began = perf_counter_ns() if recordings else 0
        return self

    def __exit__(self, *error: object) -> None:
        if self._began:
            record(self._name, "annotation", self._began, **self._labels)


class StepTraceAnnotation(TraceAnnotation):
    """A step of training, which a profile shows under a name and its number, `step_num`.

    >>> for step in range(2):
    ...     with fg.profiler.StepTraceAnnotation("train", step_num=step):
    ...         pass
    """

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name, _r=1, **kwargs)  # what TensorBoard knows the steps by


def annotate_function(func: _F, name: str | None = None, **decorator_kwargs: Any) -> _F:
    """A function whose calls a profile shows, under its name or another one, with labels.

    >>> @fg.profiler.annotate_function
    ... def load():
    ...     return 1
    >>> load()
    1
    """
    if not callable(func):
        raise TypeError(f"annotate_function: need a function, got {func!r}")
    shown = name or str(getattr(func, "__qualname__", type(func).__name__))

    @wraps(func)
    def annotated(*args: Any, **kwargs: Any) -> Any:
        with TraceAnnotation(shown, **decorator_kwargs):
            return func(*args, **kwargs)

    return annotated  # type: ignore[return-value]


def chrome_trace(recording: Recording) -> dict:
    """A recording in Chrome's trace format: times in microseconds from its beginning. Threads have
    numbers of their own; a span that holds others comes before them."""
    process = os.getpid()
    threads = dict.fromkeys(span.thread for span in recording.spans)
    numbers = {thread: i for i, thread in enumerate(threads, 1)}
    events: list[dict] = [_named("process_name", process, 0, f"funcgrad {process}")]
    events += [_named("thread_name", process, i, name) for (_, name), i in numbers.items()]
    for span in sorted(recording.spans, key=lambda s: (s.thread, s.start, -s.end)):
        events.append({
            "ph": "X", "name": span.name, "cat": span.category, "pid": process,
            "tid": numbers[span.thread], "ts": (span.start - recording.began) / 1e3,
            "dur": (span.end - span.start) / 1e3,
            "args": {key: _label(value) for key, value in span.labels.items()},
        })  # fmt: skip
    return {
        "displayTimeUnit": "ns",
        "otherData": {"dropped_spans": recording.dropped},
        "traceEvents": events,
    }


def _named(kind: str, process: int, thread: int, name: str) -> dict:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _label(value: object) -> str | int | float | bool:
    plain = isinstance(value, str | int | float | bool)
    return value if plain else str(value)  # type: ignore[return-value]
