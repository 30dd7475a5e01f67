"""One timer for many deadlines."""

import asyncio

from funcgrad.serve.deadlines import Deadlines


def test_what_is_late_is_told_in_order_and_what_is_removed_is_not():
    late = []
    clock = Deadlines(0.03, late.append)

    async def some(names, removed):
        for name in names:
            clock.add(name)
            await asyncio.sleep(0.002)
        clock.remove(removed)
        clock.remove("none")
        await asyncio.sleep(0.1)

    asyncio.run(some("abcd", "b"))
    assert late == ["a", "c", "d"]
    # On another loop nothing of the first is left, whose timer may never have rung.
    asyncio.run(_adds(clock, "lost"))
    asyncio.run(some("ef", "e"))
    assert late == ["a", "c", "d", "f"]


async def _adds(clock, name):
    clock.add(name)
