"""Models over HTTP, by the Open Inference Protocol (version 2).

- `models`: what is served: functions with named, typed inputs; from ONNX files; versions of them
- `batching`: requests that wait together run together
- `protocol`: tensors in requests and responses, as JSON or as bytes
- `app`: the ASGI application: routes, limits, errors
- `metrics`: counters and histograms, as Prometheus reads them
- `__main__`: `python -m funcgrad.serve folder-or-file --port 8000`

Nothing that a client sends or a folder holds is unpickled or run as code.
"""

from funcgrad.serve.app import App
from funcgrad.serve.batching import Batching
from funcgrad.serve.models import Model, Repository, load_model

__all__ = ["App", "Batching", "Model", "Repository", "load_model"]
