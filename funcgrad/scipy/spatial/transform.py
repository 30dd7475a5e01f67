"""Rotations in three dimensions, one or many, as quaternions (x, y, z, w) along the last axis.

Rotation vectors have derivatives at the identity, too, as roots are taken of what isn't small.
Euler's angles are read off the quaternion (Bernardes and Viollet, PLoS ONE 17, 2022).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import funcgrad.numpy as fnp
from funcgrad import random, tree
from funcgrad.core.context import current
from funcgrad.errors import ArgumentError, ShapeError
from funcgrad.scipy._operands import float_arrays, real_array

SMALL = 1e-6


def _vectors(function: str, name: str, value: Any, *ends: int) -> Any:
    """A real array whose last axes have these lengths."""
    (array,) = float_arrays([real_array(f"Rotation.{function}", name, value)])
    if array.shape[-len(ends) :] != ends:
        raise ShapeError(
            f"Rotation.{function}: {name} must be (..., {', '.join(map(str, ends))}), "
            f"got {array.shape}"
        )
    return array


def _axes(function: str, seq: str, least: int) -> tuple[list[int], bool]:
    """The axes of Euler's angles, and whether they are extrinsic."""
    good = isinstance(seq, str) and re.fullmatch("[xyz]{1,3}|[XYZ]{1,3}", seq)
    if not good or len(seq) < least or any(a == b for a, b in pairwise(seq)):
        raise ArgumentError(
            f"Rotation.{function}: seq must be {'3' if least == 3 else '1 to 3'} of 'xyz' or of "
            f"'XYZ', of which neighbours differ, got {seq!r}"
        )
    return ["xyz".index(a) for a in seq.lower()], seq.islower()


def _compose(p: Any, q: Any) -> Any:
    a, b, s, t = p[..., :3], q[..., :3], p[..., 3:], q[..., 3:]
    vector = s * b + t * a + fnp.cross(a, b)
    return fnp.concatenate([vector, s * t - fnp.sum(a * b, axis=-1, keepdims=True)], axis=-1)


def _normalized(quat: Any) -> Any:
    return quat / fnp.sqrt(fnp.sum(quat * quat, axis=-1, keepdims=True))


def _root(square: Any) -> Any:
    """√square, with derivative 0 at 0."""
    positive = square > 0
    return fnp.where(positive, fnp.sqrt(fnp.where(positive, square, 1.0)), 0.0)


@tree.register_pytree_node_class
class Rotation:
    """One rotation, or an array of them; a pytree of its quaternions.

    >>> from funcgrad.scipy.spatial.transform import Rotation
    >>> turn = Rotation.from_euler("z", 90, degrees=True)
    >>> print(fnp.round(turn.apply(fnp.array([1.0, 0.0, 0.0]))))
    [0. 1. 0.]
    """

    def __init__(self, quat: Any):
        self.quat = quat

    def tree_flatten(self) -> tuple[tuple, None]:
        """The quaternions, as a pytree's leaf.

        >>> len(Rotation.identity().tree_flatten()[0])
        1
        """
        return (self.quat,), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple) -> Rotation:
        """The rotations of these quaternions.

        >>> Rotation.tree_unflatten(None, (fnp.array([0.0, 0.0, 0.0, 1.0]),)).single
        True
        """
        return cls(*children)

    def __repr__(self) -> str:
        return f"Rotation({self.quat!r})"

    @classmethod
    def concatenate(cls, rotations: Sequence[Rotation]) -> Rotation:
        """The rotations of all of these, in one.

        >>> len(Rotation.concatenate([Rotation.identity(), Rotation.identity()]))
        2
        """
        return cls(fnp.concatenate([fnp.atleast_2d(r.quat) for r in rotations]))

    @classmethod
    def from_euler(cls, seq: str, angles: Any, degrees: bool = False) -> Rotation:
        """By angles (..., n) about n axes, fixed ones ("xyz") or those that turn along ("XYZ").

        >>> print(Rotation.from_euler("x", 0.0).as_quat())
        [0. 0. 0. 1.]
        """
        axes, extrinsic = _axes("from_euler", seq, 1)
        (angles,) = float_arrays([real_array("Rotation.from_euler", "angles", angles)])
        if len(axes) == 1 and angles.shape[-1:] != (1,):
            angles = angles[..., None]
        if angles.shape[-1:] != (len(axes),):
            raise ShapeError(
                f"Rotation.from_euler: angles must be (..., {len(axes)}), got {angles.shape}"
            )
        half = 0.5 * (fnp.deg2rad(angles) if degrees else angles)
        quat = None
        for i, axis in enumerate(axes):
            parts = [fnp.zeros_like(half[..., i])] * 3 + [fnp.cos(half[..., i])]
            parts[axis] = fnp.sin(half[..., i])
            turn = fnp.stack(parts, axis=-1)
            if quat is None:
                quat = turn
            else:
                quat = _compose(turn, quat) if extrinsic else _compose(quat, turn)
        return cls(quat)

    @classmethod
    def from_matrix(cls, matrix: Any) -> Rotation:
        """By orthogonal matrices (..., 3, 3).

        >>> print(Rotation.from_matrix(fnp.eye(3)).as_quat())
        [0. 0. 0. 1.]
        """
        m = _vectors("from_matrix", "matrix", matrix, 3, 3)
        d = [m[..., i, i] for i in range(3)]
        trace = d[0] + d[1] + d[2]
        # Four formulas, of which the one with the largest component loses no digits.
        found = []
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            parts = [trace] * 4
            parts[i], parts[3] = 1 - trace + 2 * d[i], m[..., k, j] - m[..., j, k]
            parts[j], parts[k] = m[..., j, i] + m[..., i, j], m[..., k, i] + m[..., i, k]
            found.append(fnp.stack(parts, axis=-1))
        turned = [m[..., k, j] - m[..., j, k] for j, k in ((1, 2), (2, 0), (0, 1))]
        found.append(fnp.stack([*turned, 1 + trace], axis=-1))
        best = fnp.argmax(fnp.stack([*d, trace], axis=-1), axis=-1)[..., None, None]
        quats = fnp.stack(found, axis=-2)
        best = fnp.broadcast_to(best, (*quats.shape[:-2], 1, 4))
        return cls(_normalized(fnp.take_along_axis(quats, best, axis=-2)[..., 0, :]))

    @classmethod
    def from_mrp(cls, mrp: Any) -> Rotation:
        """By modified Rodrigues parameters (..., 3), the axis times tan(angle/4).

        >>> print(Rotation.from_mrp(fnp.zeros(3)).as_quat())
        [0. 0. 0. 1.]
        """
        mrp = _vectors("from_mrp", "mrp", mrp, 3)
        square = fnp.sum(mrp * mrp, axis=-1, keepdims=True)
        return cls(fnp.concatenate([2 * mrp, 1 - square], axis=-1) / (1 + square))

    @classmethod
    def from_quat(cls, quat: Any) -> Rotation:
        """By quaternions (..., 4), which are normalized.

        >>> print(Rotation.from_quat(fnp.array([0.0, 0.0, 0.0, 2.0])).as_quat())
        [0. 0. 0. 1.]
        """
        return cls(_normalized(_vectors("from_quat", "quat", quat, 4)))

    @classmethod
    def from_rotvec(cls, rotvec: Any, degrees: bool = False) -> Rotation:
        """By rotation vectors (..., 3), the axis times the angle.

        >>> print(Rotation.from_rotvec(fnp.zeros(3)).as_quat())
        [0. 0. 0. 1.]
        """
        v = _vectors("from_rotvec", "rotvec", rotvec, 3)
        v = fnp.deg2rad(v) if degrees else v
        square = fnp.sum(v * v, axis=-1, keepdims=True)
        small = square < SMALL
        angle = fnp.sqrt(fnp.where(small, 1.0, square))
        near = 0.5 - square / 48 + square * square / 3840
        scale = fnp.where(small, near, fnp.sin(0.5 * angle) / angle)
        w = fnp.where(small, 1 - square / 8 + square * square / 384, fnp.cos(0.5 * angle))
        return cls(fnp.concatenate([scale * v, w], axis=-1))

    @classmethod
    def identity(cls, num: int | None = None, dtype: Any = None) -> Rotation:
        """The rotation that changes nothing, or `num` of it.

        >>> print(Rotation.identity().as_quat())
        [0. 0. 0. 1.]
        """
        quat = fnp.array([0.0, 0.0, 0.0, 1.0], current().float_dtype if dtype is None else dtype)
        return cls(quat if num is None else fnp.tile(quat, (num, 1)))

    @classmethod
    def random(cls, random_key: Any, num: int | None = None) -> Rotation:
        """Uniformly distributed rotations.

        >>> Rotation.random(random.key(0), 3).as_quat().shape
        (3, 4)
        """
        return cls(_normalized(random.normal(random_key, (4,) if num is None else (num, 4))))

    @property
    def single(self) -> bool:
        """Whether it is one rotation."""
        return self.quat.ndim == 1

    def __len__(self) -> int:
        if self.single:
            raise TypeError("Rotation: a single rotation has no len()")
        return self.quat.shape[0]

    def __getitem__(self, indexer: Any) -> Rotation:
        if self.single:
            raise TypeError("Rotation: a single rotation has no items")
        return Rotation(self.quat[indexer])

    def __mul__(self, other: Rotation) -> Rotation:
        """First `other`, then this."""
        if not isinstance(other, Rotation):
            return NotImplemented
        return Rotation(_normalized(_compose(self.quat, other.quat)))

    def apply(self, vectors: Any, inverse: bool = False) -> Any:
        """Vectors (..., 3), turned; turned back, if `inverse`.

        >>> print(Rotation.identity().apply(fnp.array([1.0, 2.0, 3.0])))
        [1. 2. 3.]
        """
        v = _vectors("apply", "vectors", vectors, 3)
        matrix = self.as_matrix()
        matrix = fnp.swapaxes(matrix, -1, -2) if inverse else matrix
        return (matrix @ v[..., None])[..., 0]

    def as_euler(self, seq: str, degrees: bool = False) -> Any:
        """The angles (..., 3) about three axes; the last is 0 where only a sum is determined.

        >>> Rotation.identity(2).as_euler("zyx").shape
        (2, 3)
        """
        axes, extrinsic = _axes("as_euler", seq, 3)
        i, j, k = axes if extrinsic else axes[::-1]
        symmetric = i == k
        k = 3 - i - j if symmetric else k
        sign = (i - j) * (j - k) * (k - i) // 2
        x, y, z, w = (self.quat[..., n] for n in (i, j, k, 3))
        a, b, c, d = w, x, y, z * sign
        if not symmetric:
            a, b, c, d = a - c, b + d, c + a, d - b
        middle = 2 * fnp.arctan2(fnp.hypot(c, d), fnp.hypot(a, b))
        half_sum, half_gap = fnp.arctan2(b, a), fnp.arctan2(d, c)
        at_zero, at_turn = fnp.abs(middle) <= 1e-7, fnp.abs(middle - np.pi) <= 1e-7
        lone = fnp.where(at_zero, 2 * half_sum, 2 * half_gap * (-1 if extrinsic else 1))
        locked = fnp.logical_or(at_zero, at_turn)
        gap, total = half_sum - half_gap, half_sum + half_gap
        first, last = (gap, total) if extrinsic else (total, gap)
        first, last = fnp.where(locked, lone, first), fnp.where(locked, 0.0, last)
        if not symmetric:
            middle = middle - np.pi / 2
            first, last = (first, last * sign) if extrinsic else (first * sign, last)
        angles = fnp.stack([first, middle, last], axis=-1)
        angles = angles - 2 * np.pi * fnp.round(angles / (2 * np.pi))
        return fnp.rad2deg(angles) if degrees else angles

    def as_matrix(self) -> Any:
        """The orthogonal matrices (..., 3, 3).

        >>> print(Rotation.identity().as_matrix()[0])
        [1. 0. 0.]
        """
        x, y, z, w = (self.quat[..., i] for i in range(4))
        rows = [
            [w * w + x * x - y * y - z * z, 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), w * w - x * x + y * y - z * z, 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), w * w - x * x - y * y + z * z],
        ]
        return fnp.stack([fnp.stack(row, axis=-1) for row in rows], axis=-2)

    def as_mrp(self) -> Any:
        """The modified Rodrigues parameters (..., 3), of length 1 at most.

        >>> print(Rotation.identity().as_mrp())
        [0. 0. 0.]
        """
        sign = fnp.where(self.quat[..., 3:] < 0, -1.0, 1.0).astype(self.quat.dtype)
        return sign * self.quat[..., :3] / (1 + sign * self.quat[..., 3:])

    def as_quat(self, canonical: bool = False, scalar_first: bool = False) -> Any:
        """The quaternions; `canonical`: of the two the one whose last nonzero part is positive.

        The parts are looked at in the order w, x, y, z.

        >>> print(Rotation.identity().as_quat(scalar_first=True))
        [1. 0. 0. 0.]
        """
        quat = self.quat
        if canonical:
            x, y, z, w = (quat[..., i] for i in range(4))
            lead = fnp.where(w != 0, w, fnp.where(x != 0, x, fnp.where(y != 0, y, z)))
            quat = fnp.where(lead[..., None] < 0, -quat, quat)
        return fnp.roll(quat, 1, axis=-1) if scalar_first else quat

    def as_rotvec(self, degrees: bool = False) -> Any:
        """The rotation vectors (..., 3), of length π at most.

        >>> print(Rotation.identity().as_rotvec())
        [0. 0. 0.]
        """
        quat = fnp.where(self.quat[..., 3:] < 0, -self.quat, self.quat)
        v, w = quat[..., :3], quat[..., 3:]
        square = fnp.sum(v * v, axis=-1, keepdims=True)
        small = square < SMALL
        size = fnp.sqrt(fnp.where(small, 1.0, square))
        near = 2 + square / 3 + 3 * square * square / 20
        out = v * fnp.where(small, near, 2 * fnp.arctan2(size, w) / size)
        return fnp.rad2deg(out) if degrees else out

    def inv(self) -> Rotation:
        """The inverse.

        >>> print(Rotation.identity().inv().magnitude())
        0.0
        """
        return Rotation(self.quat * fnp.array([-1, -1, -1, 1], self.quat.dtype))

    def magnitude(self) -> Any:
        """The angles, from 0 to π.

        >>> print(Rotation.identity().magnitude())
        0.0
        """
        size = _root(fnp.sum(self.quat[..., :3] ** 2, axis=-1))
        return 2 * fnp.arctan2(size, fnp.abs(self.quat[..., 3]))

    def mean(self, weights: Any = None) -> Rotation:
        """The rotation that is nearest to all, in squares of distances of matrices.

        >>> Rotation.identity(3).mean().single
        True
        """
        n = len(self)
        if weights is None:
            weights = fnp.ones(n, self.quat.dtype)
        else:
            weights = real_array("Rotation.mean", "weights", weights).astype(self.quat.dtype)
        if weights.shape != (n,):
            raise ShapeError(f"Rotation.mean: weights must be ({n},), got {weights.shape}")
        products = (weights * self.quat.T) @ self.quat
        return Rotation(fnp.linalg.eigh(products)[1][:, -1])


@tree.register_pytree_node_class
class Slerp:
    """Rotations at any time between those given, turning evenly from each to the next.

    >>> from funcgrad.scipy.spatial.transform import Rotation, Slerp
    >>> ends = Rotation.from_euler("z", fnp.array([0.0, 90.0]), degrees=True)
    >>> print(fnp.round(fnp.rad2deg(Slerp(fnp.array([0.0, 1.0]), ends)(0.5).magnitude())))
    45.0
    """

    def __init__(self, times: Any, rotations: Rotation):
        if not isinstance(rotations, Rotation):
            raise TypeError(f"Slerp: rotations must be a Rotation, got {type(rotations).__name__}")
        if rotations.single or len(rotations) < 2:
            raise ShapeError("Slerp: rotations must be 2 or more")
        self.times = real_array("Slerp", "times", times).astype(rotations.quat.dtype)
        if self.times.shape != (len(rotations),):
            raise ShapeError(
                f"Slerp: times must be ({len(rotations)},), one a rotation, got {self.times.shape}"
            )
        self.timedelta = fnp.diff(self.times)
        self.rotations = rotations[:-1]
        self.rotvecs = (self.rotations.inv() * rotations[1:]).as_rotvec()

    @classmethod
    def init(cls, times: Any, rotations: Rotation) -> Slerp:
        """The same as `Slerp(times, rotations)`, as JAX spells it.

        >>> Slerp.init(fnp.array([0.0, 1.0]), Rotation.identity(2))(0.5).single
        True
        """
        return cls(times, rotations)

    def tree_flatten(self) -> tuple[tuple, None]:
        """The arrays, as a pytree's leaves.

        >>> len(Slerp(fnp.array([0.0, 1.0]), Rotation.identity(2)).tree_flatten()[0])
        4
        """
        return (self.times, self.timedelta, self.rotations, self.rotvecs), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: tuple) -> Slerp:
        """The interpolation of these arrays.

        >>> slerp = Slerp(fnp.array([0.0, 1.0]), Rotation.identity(2))
        >>> Slerp.tree_unflatten(None, slerp.tree_flatten()[0])(0.5).single
        True
        """
        slerp = object.__new__(cls)
        slerp.times, slerp.timedelta, slerp.rotations, slerp.rotvecs = children
        return slerp

    def __call__(self, times: Any) -> Rotation:
        times = real_array("Slerp", "times", times).astype(self.times.dtype)
        if times.ndim > 1:
            raise ShapeError(f"Slerp: times must be a number or (n,), got {times.shape}")
        last = self.timedelta.shape[0] - 1
        piece = fnp.clip(fnp.searchsorted(self.times, times) - 1, 0, last)
        part = (times - self.times[piece]) / self.timedelta[piece]
        turn = Rotation.from_rotvec(self.rotvecs[piece] * part[..., None])
        return self.rotations[piece] * turn


__all__ = ["Rotation", "Slerp"]
