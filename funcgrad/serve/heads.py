"""Connections whose next request's head doesn't come in time.

A server calls an application when a head is whole, so one that is sent a byte a second, or never,
is none of the application's business; uvicorn waits for it for ever.
"""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import TYPE_CHECKING, Any

from funcgrad.serve.app import App
from funcgrad.serve.deadlines import Deadlines

if TYPE_CHECKING:
    import uvicorn


def server(uvicorn: ModuleType, app: App, seconds: float, **options: Any) -> uvicorn.Server:
    """uvicorn's server, which ends connections whose head takes longer; options: of its Config."""
    config = uvicorn.Config(app, **options)
    config.load()
    config.http_protocol_class = ending_slow(config.http_protocol_class, seconds)
    return uvicorn.Server(config)


def ending_slow(protocol: type, seconds: float) -> type:
    """uvicorn's protocol of a connection, with a deadline for each request's head."""
    heads: Deadlines[Any] = Deadlines(seconds, lambda p: p.transport.close())

    class EndingSlow(protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            heads.add(self)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                heads.add(self)
            else:
                heads.remove(self)  # a request is under way

        def connection_lost(self, exc: Exception | None) -> None:
            heads.remove(self)
            super().connection_lost(exc)

    return EndingSlow
