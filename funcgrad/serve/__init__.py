"""Models over HTTP, by the Open Inference Protocol (version 2).

- `models`: what is served: functions with named, typed inputs; from ONNX files; versions of them
- `batching`: requests that wait together run together
- `limits`: what a server's limits, and its models' names, may be
- `deadlines`: one timer for all requests that may take the same time
- `generation`: models that generate tokens, a step at a time, and their files
- `decoding`: sequences that are generated side by side, and come and go between steps
- `streams`: their requests, and results as server-sent events
- `protocol`: tensors in requests and responses, as JSON or as bytes
- `app`: the ASGI application: routes, limits, errors
- `heads`: connections on which a request's head comes too slowly end
- `log`: a line for each request
- `metrics`: counters and histograms, as Prometheus reads them
- `pages`: the page at /, whose files are in the folder `page`
- `workers`: several processes that serve the same models
- `__main__`: `python -m funcgrad.serve folder-or-file --port 8000`

Nothing that a client sends or a folder holds is unpickled or run as code.
"""

from funcgrad.serve.app import App
from funcgrad.serve.batching import Batching
from funcgrad.serve.generation import Generator, save_generator
from funcgrad.serve.models import Model, Repository, load_model

__all__ = ["App", "Batching", "Generator", "Model", "Repository", "load_model", "save_generator"]
