"""Profiles: where time goes, and what is in memory, by the names of `jax.profiler`.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> with fg.profiler.trace(folder), fg.profiler.TraceAnnotation("twice"):
...     _ = fg.jit(lambda x: x * 2)(fnp.ones(3))

- `timeline`: calls, compilations and annotations on a time line, as Chrome's trace format
- `memory`: arrays in memory, in pprof's format
"""

from funcgrad.profiler.memory import device_memory_profile, save_device_memory_profile
from funcgrad.profiler.timeline import (
    StepTraceAnnotation,
    TraceAnnotation,
    annotate_function,
    start_trace,
    stop_trace,
    trace,
)

__all__ = [
    "StepTraceAnnotation", "TraceAnnotation", "annotate_function", "device_memory_profile",
    "save_device_memory_profile", "start_trace", "stop_trace", "trace",
]  # fmt: skip
