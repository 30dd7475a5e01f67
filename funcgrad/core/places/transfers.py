"""Borders that values cross: from NumPy into arrays, out of arrays, and from device to device.

An `Array` counts as a device's, also where that is the CPU and its memory NumPy's: so what would
copy on a GPU is found on any machine. A crossing is explicit where the user asked for it, by
`device_put`, `device_get` and their like. Python's numbers are no transfers: they are written into
programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from funcgrad.core import context, source
from funcgrad.core.telemetry.log import logger
from funcgrad.errors import TransferError

if TYPE_CHECKING:
    from funcgrad.core.aval import ShapedArray

LEVELS = ("allow", "log", "disallow", "log_explicit", "disallow_explicit")
_TOLD = {
    "host_to_device": ("goes into an array", "bring it there before, by device_put"),
    "device_to_host": ("is read by Python or NumPy", "fetch it by device_get"),
    "device_to_device": ("goes to another device", "bring it there before, by device_put"),
}


class Transfers(NamedTuple):
    """What is done about crossings: in each direction one of `LEVELS`; and whether those that
    happen now are asked for."""

    host_to_device: str = "allow"
    device_to_host: str = "allow"
    device_to_device: str = "allow"
    explicit: bool = False


def crosses(direction: str, what: ShapedArray) -> None:
    """Tell of a value of this type that crosses a border, or raise TransferError."""
    checks = context.current().checks
    if checks is None or checks.transfers is None or _is_staging():
        return
    explicit = checks.transfers.explicit
    level = getattr(checks.transfers, direction)
    if level == "allow" or (explicit and not level.endswith("explicit")):
        return
    how, instead = _TOLD[direction]
    place = source.current()
    where = f" at {place}: {place.text}" if place else ""
    told = f"{what} {how} ({direction.replace('_', ' ')}){where}"
    if level.startswith("log"):
        logger().warning("transfer of %s", told)
    else:
        raise TransferError(
            f"transfer_guard: {told}, which {level!r} forbids" + (f"; {instead}" * (not explicit))
        )


def taken_in(x: np.ndarray | np.generic, what: ShapedArray) -> None:
    """Tell of an array of NumPy's that becomes an operand, if the user gave it: what the library's
    functions make for themselves crosses no border."""
    checks = context.current().checks
    if checks is not None and checks.transfers is not None and source.is_argument(x):
        crosses("host_to_device", what)


def handed_out(what: ShapedArray) -> None:
    """Tell of an array that is read, if the user reads it, or has it read."""
    checks = context.current().checks
    if checks is None or checks.transfers is None:
        return
    if checks.transfers.explicit or not source.called_within("core"):
        crosses("device_to_host", what)


def _is_staging() -> bool:
    """Whether a program is being written: what it meets becomes its constants."""
    trace = context.current().trace
    while trace is not None:
        if trace.cells is not None:
            return True
        trace = trace.parent  # type: ignore[assignment]
    return False


@contextmanager
def explicitly() -> Iterator[None]:
    """A block whose crossings the user asked for."""
    checks = context.current().checks
    if checks is None or checks.transfers is None:
        yield
        return
    asked = checks.transfers._replace(explicit=True)
    with context.scoped(checks=checks._replace(transfers=asked)):
        yield
