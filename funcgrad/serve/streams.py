"""Requests that generate, and results that come in parts: server-sent events.

They are those of Triton's extension "generate", with a request's options among its parameters.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from funcgrad.serve.generation import Generator, Options
from funcgrad.serve.protocol import RequestError, id_in, priority_in

Receive = Callable[[], Awaitable[dict]]
Send = Callable[[dict], Awaitable[None]]


def generation_request(model: Generator, body: bytes) -> tuple[list[int], Options, int, str]:
    """The prompt's tokens, the options, the priority and the id of a request."""
    try:
        told = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise RequestError(f"the request is no JSON: {e}") from None
    given = told.get("parameters", {}) if isinstance(told, dict) else None
    if not isinstance(given, dict) or ("text_input" in told) == ("tokens" in told):
        raise RequestError(f"{model.name} needs text_input or tokens, and maybe parameters")
    prompt = told["tokens"] if "tokens" in told else _text(model, told["text_input"])
    if not isinstance(prompt, list) or not prompt:
        raise RequestError(f"the prompt of {model.name} needs a token at least")
    for token in prompt:
        if type(token) is not int or not 0 <= token < model.size:
            raise RequestError(f"tokens are integers below {model.size}, got {token!r}")
    options = _options({k: v for k, v in given.items() if k != "priority"})
    if len(prompt) + options.max_tokens - 1 > model.context:
        raise RequestError(
            f"{len(prompt)} tokens and {options.max_tokens} more don't fit in the "
            f"{model.context} of {model.name}"
        )
    return prompt, options, priority_in(given), id_in(told)


def _text(model: Generator, text: Any) -> list[int]:
    if not isinstance(text, str):
        raise RequestError("text_input must be a string")
    return model.tokens_of(text)


def _options(given: dict[str, Any]) -> Options:
    if not given.keys() <= set(Options._fields):
        raise RequestError(f"parameters are {Options._fields} and priority, got {sorted(given)}")
    options = Options(**given)
    for name, least, most in (("max_tokens", 1, 1 << 31), ("top_k", 0, 1 << 31),
                              ("seed", 0, 1 << 32)):  # fmt: skip
        value = getattr(options, name)
        if type(value) is not int or not least <= value < most:
            raise RequestError(f"{name} is an integer from {least} to {most - 1}, got {value!r}")
    heat = options.temperature
    if type(heat) not in (int, float) or not (math.isfinite(heat) and 0 <= heat <= 1e6):
        raise RequestError(f"temperature is a number from 0 to 1e6, got {heat!r}")
    return options


def generated(model: Generator, tokens: Sequence[int]) -> dict[str, Any]:
    """Tokens as the protocol says them."""
    return {
        "model_name": model.name, "model_version": model.version,
        "text_output": model.text_of(tokens), "tokens": list(tokens),
    }  # fmt: skip


async def events(
    model: Generator, tokens: AsyncGenerator[int, None]
) -> AsyncGenerator[bytes, None]:
    """Tokens as server-sent events, one each; an error behind the first is one, too."""
    count = 0
    try:
        async for token in tokens:
            yield b"data: " + json.dumps(generated(model, [token])).encode() + b"\n\n"
            count += 1
    except RequestError as e:
        if not count:
            raise
        yield b"data: " + json.dumps({"error": str(e)}).encode() + b"\n\n"
    finally:
        await tokens.aclose()


async def begun(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same parts, of which the first is there."""
    first = await anext(parts, b"")

    async def all_of_them() -> AsyncGenerator[bytes, None]:
        try:
            yield first
            async for part in parts:
                yield part
        finally:
            await parts.aclose()

    return all_of_them()


async def collected(tokens: AsyncGenerator[int, None]) -> list[int]:
    """All the tokens."""
    try:
        return [token async for token in tokens]
    finally:
        await tokens.aclose()


async def sent_in_parts(parts: AsyncGenerator[bytes, None], receive: Receive, send: Send) -> None:
    """Send the parts of a body as they come, until the client goes."""

    async def every() -> None:
        try:
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        finally:
            await parts.aclose()
        await send({"type": "http.response.body", "body": b""})

    try:
        await unless_gone(every(), receive)
    except (RequestError, OSError):
        return  # the client has gone, and there is nobody to tell


async def unless_gone(work: Coroutine[Any, Any, Any], receive: Receive) -> Any:
    """What some work gives, which is cancelled when the client goes."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    doing, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((doing, watching), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise RequestError("the client has gone", 499, "cancelled")
        return doing.result()
    finally:
        for task in (doing, watching):
            task.cancel()
        await asyncio.gather(doing, watching, return_exceptions=True)
