"""`fold_norms`: factors and shifts of a product's results become its weight's, and a bias.

A norm by kept statistics (Ioffe & Szegedy, *Batch normalization*, 2015) multiplies each channel of
a convolution with a number and adds one, both made of parameters alone: conv(x, w)·s + t is
conv(x, w·s) + t. The pass goes through the program, from each product along what is done with its
result; what it wrote of parameters alone is then computed, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import funcgrad.numpy as fnp
from funcgrad import dtypes, tree
from funcgrad.core.dce import dce_eqns
from funcgrad.core.ir import Atom, Eqn, Jaxpr, Literal, Var, eval_jaxpr
from funcgrad.core.rewriting import Writer, makers, uses
from funcgrad.core.shapes import ShapeDtypeStruct
from funcgrad.errors import ArgumentError
from funcgrad.ops.base import broadcast_p
from funcgrad.ops.contract import dot_general_p
from funcgrad.ops.convolution.conv import conv_general_dilated_p
from funcgrad.ops.elementwise.arithmetic import div, mul, sub
from funcgrad.ops.families import add
from funcgrad.transforms.arguments import wraps
from funcgrad.transforms.control.jit_primitive import jit_p
from funcgrad.transforms.passes.simplify import inline_calls
from funcgrad.transforms.weights.applied import of_arrays, traced
from funcgrad.transforms.weights.leaves import listed, named_leaves
from funcgrad.transforms.weights.weight import Weight


def fold_norms(f: Callable, params: Any, *inputs: Any) -> tuple[Callable, dict[str, Any]]:
    """f(params, *inputs) without norms by kept statistics: (folded, its parameters).

    Where a product or a convolution with a weight is followed by factors and shifts of its results'
    channels that are made of parameters alone, the factors become the weight's, and the shifts
    those of one bias. folded(fparams, *inputs) is called as f is, with inputs of any shapes that f
    takes; fparams is a dictionary from leaves' names: those that the function still needs, folded
    weights by their names, and `NAME.shift` for what is added to the results of NAME. Results
    differ by rounding.

    inputs: arrays or shapes, by which f is traced. Products in loops and branches stay.
    Raises ArgumentError where there is nothing to fold.

    >>> def f(params, x):
    ...     h = (x @ params["w"] - params["mean"]) / fnp.sqrt(params["var"] + 1e-5)
    ...     return nn.relu(h * params["scale"] + params["bias"])
    >>> params = {n: fnp.ones(3) for n in ("mean", "var", "scale", "bias")} | {
    ...     "w": fnp.ones((4, 3))
    ... }
    >>> folded, fparams = fg.quantization.fold_norms(f, params, fnp.ones((2, 4)))
    >>> sorted(fparams)
    ['w', 'w.shift']
    >>> bool(fnp.allclose(folded(fparams, fnp.ones((5, 4))), f(params, fnp.ones((5, 4)))))
    True
    """
    if not callable(f):
        raise TypeError(f"fold_norms: the first argument must be a function, got {f!r}")
    plain = of_arrays(f)
    arrays = named_leaves(params)
    for name, x in arrays.items():
        if isinstance(x, Weight):
            raise ArgumentError(
                f"fold_norms: the parameter {name} must be an array, got {type(x).__name__}: fold "
                "norms before weights are quantized or get adapters"
            )
    leaves = [fnp.asarray(x) for x in arrays.values()]
    types = [ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    shapes = tree.unflatten(tree.structure(params), types)

    def program(inputs: tuple, named: Mapping[str, Any]) -> tuple[_Folded, Any, list]:
        closed, result, values = traced(plain, shapes, inputs, named)
        jaxpr = inline_calls(closed.jaxpr, lambda prim: prim is jit_p)
        n = len(closed.consts)
        folder = _Folder(jaxpr, dict(zip(jaxpr.ins[n : n + len(arrays)], arrays, strict=True)))
        return folder.folded(closed.consts), result, values

    found, _, _ = program(inputs, {})
    if not found.of:
        raise ArgumentError(
            "fold_norms: found no product or convolution with one of the parameters "
            f"{listed(arrays)} whose results are multiplied with what is made of parameters alone"
        )
    fparams = dict(zip(found.names, found.values(leaves), strict=True))

    @wraps(plain, "fold_norms")
    def folded(fparams: Mapping[str, Any], *inputs: Any, **named: Any) -> Any:
        found, result, values = program(inputs, named)
        if not isinstance(fparams, Mapping) or set(fparams) != set(found.names):
            got = listed(map(str, fparams)) if isinstance(fparams, Mapping) else type(fparams)
            raise ArgumentError(
                f"{folded.__name__}: parameters must be {listed(found.names)}, got {got}"
            )
        given = [fparams[n] for n in found.names]
        return tree.unflatten(tree.structure(result), found.run(given, values))

    return folded, fparams


@dataclass(frozen=True)
class _Folded:
    """A program after folding. of: the folded values by name; kept: leaves by name, of those that
    it still needs; every: all leaves' variables, in order; rest: the inputs'."""

    jaxpr: Jaxpr
    consts: tuple
    of: dict[str, Atom]
    kept: dict[str, Var]
    every: list[Var]
    rest: list[Var]

    @property
    def names(self) -> list[str]:
        """The names of the parameters of the program after folding."""
        return [*self.kept, *self.of]

    def values(self, leaves: list) -> list:
        """These parameters."""
        outs = [*self.kept.values(), *self.of.values()]
        heads = self.jaxpr.ins[: len(self.consts)]
        program = Jaxpr([*heads, *self.every], dce_eqns(self.jaxpr.eqns, outs), outs)
        return eval_jaxpr(program, *self.consts, *leaves)

    def run(self, params: list, values: list) -> list:
        """The program's results."""
        heads = self.jaxpr.ins[: len(self.consts)]
        ins = [*heads, *self.kept.values(), *self.of.values(), *self.rest]
        program = Jaxpr(ins, self.without_folded(), self.jaxpr.outs)  # type: ignore[arg-type]
        return eval_jaxpr(program, *self.consts, *params, *values)

    def without_folded(self) -> list[Eqn]:
        """The equations that are left where the folded values are inputs."""
        given = set(self.of.values())
        return dce_eqns([e for e in self.jaxpr.eqns if given.isdisjoint(e.outs)], self.jaxpr.outs)


@dataclass(frozen=True)
class _Scaled:
    """A product that isn't written yet, times `scale`, plus `shift`: vectors of its channels."""

    eqn: Eqn
    ins: tuple
    side: int
    scale: Any = None
    shift: Any = None

    @property
    def channels(self) -> tuple[int, int]:
        """The axis of channels of the weight, and of the result."""
        params, weight = self.eqn.params, self.eqn.ins[self.side].aval
        if self.eqn.prim is conv_general_dilated_p:
            numbers = params["dimension_numbers"]
            return numbers.rhs_spec[0], numbers.out_spec[1]
        summed = params["dimension_numbers"][0][self.side]
        (own,) = (i for i in range(weight.ndim) if i not in summed)
        return own, (self.eqn.outs[0].aval.ndim - 1) * self.side

    def times(self, factor: Any) -> _Scaled:
        """The product times a vector."""
        scale = factor if self.scale is None else self.scale * factor
        return replace(self, scale=scale, shift=None if self.shift is None else self.shift * factor)

    def plus(self, term: Any) -> _Scaled:
        """The product plus a vector."""
        return replace(self, shift=term if self.shift is None else self.shift + term)


class _Folder(Writer):
    """Products are put off, and take up what their results are multiplied with."""

    def __init__(self, jaxpr: Jaxpr, leaves: Mapping[Var, str]):
        super().__init__("folding")
        self.old, self.leaves = jaxpr, leaves
        self.made, self.used = makers(jaxpr), uses(jaxpr)
        # Of which leaves each value is made that depends on nothing else.
        self.known: dict[Atom, frozenset[Var]] = {v: frozenset([v]) for v in leaves}
        self.found: dict[str, Any] = {}
        self.of: dict[str, Atom] = {}

    def folded(self, consts: tuple) -> _Folded:
        """The program, with what was folded by name."""
        self.known |= dict.fromkeys(self.old.ins[: len(consts)], frozenset())
        new = self.write(self.old)
        rest = [v for v in new.ins[len(consts) :] if v not in self.leaves]
        found = _Folded(new, consts, self.of, {}, list(self.leaves), rest)
        left = {a for e in found.without_folded() for a in e.ins} | set(new.outs)
        kept = {n: v for v, n in self.leaves.items() if v in left}
        of = {f"{n}.folded" if n in kept else n: v for n, v in self.of.items()}
        return replace(found, of=of, kept=kept)

    def finish(self, jaxpr: Jaxpr, ins: Sequence[Var], outs: Sequence[Any]) -> Jaxpr:
        atoms = {n: self.atom(x) for n, x in self.found.items()}
        new = super().finish(jaxpr, ins, outs)
        # Others are leaves, or of products that nothing needs.
        made = makers(new)
        self.of = {n: a for n, a in atoms.items() if a in made}
        return new

    def equation(self, eqn: Eqn, ins: list) -> None:
        if all(type(a) is Literal or a in self.known for a in eqn.ins):
            made_of = frozenset().union(*(self.known.get(a, ()) for a in eqn.ins))
            self.known |= dict.fromkeys(eqn.outs, made_of)
            self.keep(eqn, ins)
            return
        found = self._product(eqn, ins) or self._affine(eqn, ins)
        if found is not None and len(self.used.get(eqn.outs[0], ())) == 1:
            self.define(eqn, [found])
        elif found is not None:
            self.define(eqn, [self._written(found)])
        else:
            self.keep(eqn, [self._settled(a, x) for a, x in zip(eqn.ins, ins, strict=True)])

    def walk(self, jaxpr: Jaxpr) -> list:
        outs = super().walk(jaxpr)
        return [self._settled(a, x) for a, x in zip(jaxpr.outs, outs, strict=True)]

    def _settled(self, atom: Atom, x: Any) -> Any:
        """A value, written down if it was put off."""
        if not isinstance(x, _Scaled):
            return x
        self.same[atom] = self._written(x)
        return self.same[atom]

    def _product(self, eqn: Eqn, ins: list) -> _Scaled | None:
        """The product of a weight with channels that an equation is, or None."""
        if eqn.prim is conv_general_dilated_p:
            side, ok = 1, eqn.params["batch_group_count"] == 1
        elif eqn.prim is dot_general_p:
            contracted, batch = eqn.params["dimension_numbers"]
            side = 1 if eqn.ins[1] in self.known else 0
            ok = not batch[0] and eqn.ins[side].aval.ndim - len(contracted[side]) == 1
        else:
            return None
        weight, out = eqn.ins[side], eqn.outs[0]
        ok = ok and bool(self.known.get(weight)) and weight.aval.dtype == out.aval.dtype
        if not ok or not dtypes.is_float(out.aval.dtype):
            return None
        settled = tuple(self._settled(a, x) for a, x in zip(eqn.ins, ins, strict=True))
        return _Scaled(eqn, settled, side)

    def _affine(self, eqn: Eqn, ins: list) -> _Scaled | None:
        """What an equation makes of a product by a vector of parameters, or None."""
        side = next((i for i, x in enumerate(ins) if isinstance(x, _Scaled)), None)
        if side is None or eqn.prim not in (add, sub, mul, div) or len(ins) != 2:
            return None
        product, other = ins[side], self._vector(eqn.ins[1 - side], ins[side].channels[1])
        if other is None or (eqn.prim is div and side == 1):
            return None
        if eqn.prim is mul:
            return product.times(other)
        if eqn.prim is div:
            return product.times(1 / other)
        if eqn.prim is sub:
            return product.plus(-other) if side == 0 else product.times(-1.0).plus(other)
        return product.plus(other)

    def _vector(self, atom: Atom, axis: int) -> Any:
        """A value of parameters that differs along this axis only, as a vector or a number."""
        if type(atom) is Literal:
            return self.value(atom)
        if atom not in self.known:
            return None
        aval, eqn = atom.aval, self.old.eqns[self.made[atom]] if atom in self.made else None
        if eqn is not None and eqn.prim is broadcast_p:
            atom, dims = eqn.ins[0], eqn.params["broadcast_dimensions"]
            long = {d for d, n in zip(dims, atom.aval.shape, strict=True) if n != 1}
        else:
            long = {i for i, n in enumerate(aval.shape) if n != 1}
        if not long <= {axis}:
            return None
        return fnp.reshape(self.value(self.read(atom)), (-1,) if atom.aval.size > 1 else ())

    def _written(self, x: _Scaled) -> Any:
        """The product, folded if it has a factor."""
        own, at = x.channels
        ins = [self.value(a) for a in x.ins]
        name = ""
        if x.scale is not None:
            name = self._name(x.eqn.ins[x.side])
            shape = [1] * x.eqn.ins[x.side].aval.ndim
            shape[own] = -1
            weight = ins[x.side] * fnp.reshape(x.scale, shape)
            ins[x.side] = self.found[name] = weight
        y = x.eqn.prim.bind(*ins, **x.eqn.params)
        if x.shift is None:
            return y
        shape = [1] * x.eqn.outs[0].aval.ndim
        shape[at] = -1
        shift = fnp.reshape(x.shift, shape)
        if name:
            shift = self.found[f"{name}.shift"] = fnp.broadcast_to(x.shift, (y.shape[at],))
            shift = fnp.reshape(shift, shape)
        return y + shift

    def _name(self, weight: Atom) -> str:
        """A name for a folded weight: that of the largest leaf of which it is made."""
        leaf = max(self.known[weight], key=lambda v: v.aval.size)
        name, n = self.leaves[leaf], 2
        taken = set(self.found) | (set(self.leaves.values()) - {name})
        first = name
        while name in taken:
            name, n = f"{first}.{n}", n + 1
        return name
