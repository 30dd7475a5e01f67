"""What operations are watched for, where a user asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from funcgrad.core.types import Params

if TYPE_CHECKING:
    from funcgrad.core.places.transfers import Transfers
    from funcgrad.core.primitive import Primitive


class Checks(NamedTuple):
    """What operations are watched for. Where there are checks, calls go their longest way.

    nans, infs: whether results with NaN, or infinities, of operands without them raise
    ranks: "allow", "warn" or "raise", where arrays of different ranks broadcast
    dtypes: "standard", or "strict" where arrays of different dtypes don't promote
    transfers: what is done about values that go from NumPy to arrays and back; None: nothing
    keys: who is told of the random keys that are used; None: nobody
    """

    nans: bool = False
    infs: bool = False
    ranks: str = "allow"
    dtypes: str = "standard"
    transfers: Transfers | None = None
    keys: Watcher | None = None

    def of_programs(self) -> tuple | None:
        """What of them changes programs as they are traced, of keys whether they are watched; None
        for nothing."""
        changing = self._replace(transfers=None)
        if changing == Checks():
            return None
        return (*changing._replace(keys=None), self.keys is not None)


class Watcher(Protocol):
    """Who looks at operations that are evaluated."""

    def watch(self, prim: Primitive, values: Sequence, params: Params) -> None:
        """Be told of one, before; it may raise."""
