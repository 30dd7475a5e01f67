"""The server's command: `python -m funcgrad.serve folder-or-file --port 8000`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from funcgrad.core.process import fork
from funcgrad.serve.app import App
from funcgrad.serve.batching import Batching
from funcgrad.serve.models import Repository


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the models, then serve them until the process is told to end."""
    how = Batching()
    parser = argparse.ArgumentParser(prog="python -m funcgrad.serve", description=main.__doc__)
    parser.add_argument("models", nargs="+", help="files, or folders of them")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--max-batch-size", type=int, default=how.max_batch_size)
    parser.add_argument("--max-delay", type=float, default=how.max_delay, help="seconds")
    parser.add_argument("--max-queue", type=int, default=how.max_queue, help="requests")
    parser.add_argument("--timeout", type=float, default=how.timeout, help="seconds")
    parser.add_argument("--max-body", type=int, default=64 << 20, help="bytes")
    parser.add_argument("--certificate", help="a file: TLS, with --key")
    parser.add_argument("--key", help="the certificate's key")
    args = parser.parse_args(arguments)
    try:
        uvicorn = fork.import_module("uvicorn")
    except ImportError:
        sys.exit("the server needs uvicorn: pip install 'funcgrad[serve]'")
    batching = Batching(args.max_batch_size, args.max_delay, args.max_queue, args.timeout)
    models = Repository(sizes=batching.sizes)
    for path in args.models:
        models.load(path)
    # A token is no argument, as others see those.
    app = App(models, batching, max_body=args.max_body, token=os.environ.get("FUNCGRAD_TOKEN"))
    uvicorn.run(
        app, host=args.host, port=args.port, log_level="warning", ssl_certfile=args.certificate,
        ssl_keyfile=args.key,
    )  # fmt: skip


if __name__ == "__main__":
    main()
