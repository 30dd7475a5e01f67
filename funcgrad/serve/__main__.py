"""The server's command: `python -m funcgrad.serve folder-or-file --port 8000`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import socket
import ssl
import sys
from collections.abc import Sequence
from types import ModuleType

from funcgrad.core.process import fork
from funcgrad.errors import ArgumentError, FuncgradError
from funcgrad.serve.app import App
from funcgrad.serve.batching import Batching
from funcgrad.serve.heads import server
from funcgrad.serve.limits import check_count, check_seconds
from funcgrad.serve.log import writer
from funcgrad.serve.models import Repository
from funcgrad.serve.workers import Supervisor, Worker

SWITCH = 0.0005  # seconds, after which a thread gives up Python's lock


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the models, then serve them until the process is told to end."""
    args = parse_args(arguments)
    try:
        uvicorn = fork.import_module("uvicorn")
    except ImportError:
        sys.exit("the server needs uvicorn: pip install 'funcgrad[serve]'")
    batching = batching_of(args)
    models = Repository(sizes=batching.sizes if args.processes == 1 else ())
    for path in args.models:
        try:
            models.load(path)
        except (FuncgradError, OSError) as e:
            sys.exit(f"{path} can't be served: {e}")
    settle()
    if args.processes == 1:
        app = application(models, batching, args)
        server(uvicorn, app, args.body_timeout, host=args.host, port=args.port, **told(args)).run()
        return
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    try:
        listening = socket.create_server((args.host, args.port), family=family, backlog=1024)
    except OSError as e:
        sys.exit(f"--host {args.host} --port {args.port}: {e.strerror or e}")

    def work(models: Repository, channel: socket.socket) -> None:
        models.warm_up(batching.sizes)
        settle()
        worked(uvicorn, listening, models, channel, batching, args)

    sys.exit(Supervisor(models, work, args.processes).run())


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, or other arguments."""
    how = Batching()
    parser = argparse.ArgumentParser(prog="python -m funcgrad.serve", description=main.__doc__)
    parser.add_argument("models", nargs="+", help="files, or folders of them")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--processes", type=int, default=1, help="that share the weights")
    parser.add_argument("--max-batch-size", type=int, default=how.max_batch_size)
    parser.add_argument("--max-delay", type=float, default=how.max_delay, help="seconds")
    parser.add_argument("--max-queue", type=int, default=how.max_queue, help="requests")
    parser.add_argument("--timeout", type=float, default=how.timeout, help="seconds")
    parser.add_argument("--max-body", type=int, default=64 << 20, help="bytes")
    parser.add_argument("--log-format", choices=("none", "text", "json"), default="none")
    parser.add_argument(
        "--body-timeout",
        type=float,
        default=30.0,
        help="seconds for a request's head, and for its body",
    )
    parser.add_argument("--certificate", help="a file: TLS, with --key")
    parser.add_argument("--key", help="the certificate's key")
    args = parser.parse_args(arguments)
    if args.processes < 1 or (args.processes > 1 and not hasattr(os, "fork")):
        parser.error(f"--processes {args.processes}: one at least, and one where there is no fork")
    if (args.certificate is None) != (args.key is None):
        parser.error("--certificate and --key go together")
    for file in (args.certificate, args.key):
        if file is not None and not os.path.isfile(file):
            parser.error(f"there is no file {file}")
    if args.certificate is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                args.certificate, args.key
            )
        except OSError as e:  # ssl.SSLError is one
            parser.error(f"--certificate {args.certificate}, --key {args.key}: {e}")
    if not 0 <= args.port < 1 << 16:
        parser.error(f"--port must be from 0 to 65535, got {args.port}")
    if os.environ.get("FUNCGRAD_TOKEN") == "":
        parser.error("FUNCGRAD_TOKEN is in the environment, and empty")
    try:
        batching_of(args)
        check_count("--max-body", "it", args.max_body)
        check_seconds("--body-timeout", "it", args.body_timeout)
    except ArgumentError as e:
        parser.error(str(e))
    return args


def batching_of(args: argparse.Namespace) -> Batching:
    """How the arguments put requests together."""
    return Batching(args.max_batch_size, args.max_delay, args.max_queue, args.timeout)


def application(models: Repository, batching: Batching, args: argparse.Namespace) -> App:
    """What the arguments ask for."""
    # A token is no argument, as others see those.
    return App(
        models, batching, max_body=args.max_body, body_timeout=args.body_timeout,
        token=os.environ.get("FUNCGRAD_TOKEN"), log=writer(args.log_format),
    )  # fmt: skip


def told(args: argparse.Namespace) -> dict:
    """What uvicorn is told."""
    return {
        "log_level": "warning", "access_log": False, "timeout_graceful_shutdown": 30,
        "ssl_certfile": args.certificate, "ssl_keyfile": args.key,
    }  # fmt: skip


def settle() -> None:
    """Take what there is for what stays: to look for requests' garbage among models takes longer
    than a request. And let a thread that has computed tell its results soon."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(SWITCH)


def worked(
    uvicorn: ModuleType, listening: socket.socket, models: Repository, channel: socket.socket,
    batching: Batching, args: argparse.Namespace,
) -> None:  # fmt: skip
    """Serve in a worker until it is told to end."""
    app = application(models, batching, args)
    worker = Worker(channel, models, app.metrics)
    app.reload, app.totals = worker.reload, worker.totals
    serves = server(uvicorn, app, args.body_timeout, **told(args))

    async def serving() -> None:
        doing = asyncio.create_task(worker.run(lambda: serves.started))
        await serves.serve(sockets=[listening])
        doing.cancel()

    with asyncio.Runner(loop_factory=serves.config.get_loop_factory()) as runner:
        runner.run(serving())


if __name__ == "__main__":
    main()
