"""Per-device programs: what one device of a mesh runs, and how its arrays are cut."""

from __future__ import annotations

from dataclasses import dataclass

from funcgrad.core.aval import ShapedArray
from funcgrad.core.ir import Jaxpr
from funcgrad.core.sharding import Cuts, Mesh


@dataclass(frozen=True, eq=False)
class SpmdProgram:
    """The program that every device of a mesh runs on its parts.

    jaxpr: of local shapes, with collectives over the mesh's axes
    in_cuts, out_cuts: over which mesh axes each input and result is cut
    """

    jaxpr: Jaxpr
    mesh: Mesh
    in_cuts: tuple[Cuts, ...]
    out_cuts: tuple[Cuts, ...]

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The types of the whole inputs."""
        return self._whole(self.jaxpr.in_avals, self.in_cuts)

    @property
    def out_avals(self) -> list[ShapedArray]:
        """The types of the whole results."""
        return self._whole(self.jaxpr.out_avals, self.out_cuts)

    def _whole(self, avals: list[ShapedArray], cuts: tuple[Cuts, ...]) -> list[ShapedArray]:
        return [
            a.update(shape=tuple(n * self.mesh.extent(x) for n, x in zip(a.shape, c, strict=True)))
            for a, c in zip(avals, cuts, strict=True)
        ]

    def __repr__(self) -> str:
        return f"per device of {self.mesh}:\n{self.jaxpr}"
