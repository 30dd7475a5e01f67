"""autocast: a function in mixed precision.

The function's program is rewritten by a `Policy`, here and in the programs within; then what loops
close over is cast once (`casts`). What comes out is a program like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad import tree
from funcgrad.core.display.tracebacks import boundary
from funcgrad.core.ir import Jaxpr, eval_jaxpr
from funcgrad.core.rewriting import rewrite
from funcgrad.core.staging import stage
from funcgrad.core.types import DTypeLike, Tree
from funcgrad.ops.arguments import check_callable
from funcgrad.transforms.arguments import (
    FlatFunction,
    avals_of,
    check_leaves,
    leaf_names,
    name_of,
    wraps,
)
from funcgrad.transforms.precision.casts import cast_once
from funcgrad.transforms.precision.kept import keep_narrow
from funcgrad.transforms.precision.leaves import labelled
from funcgrad.transforms.precision.policy import WIDE, Policy, Rules


def autocast(
    fun: Callable,
    compute: DTypeLike = "bfloat16",
    *,
    accumulate: DTypeLike = "float32",
    rules: Rules | None = None,
) -> Callable:
    """`fun` in mixed precision: float32 as before where it matters, products in a narrow dtype.

    Matrix products, convolutions and attention take factors in `compute` ("bfloat16" or "float16")
    and give results in it; their sums are formed in `accumulate`, float32 or float64. With
    "float8_e4m3fn" all is as with bfloat16, but matrix products are of float8, cotangents in
    float8_e5m2, each operand with a scale by its largest element. Exponentials,
    logarithms, powers, roots, special functions, sums (so norms, softmax and losses, too), linear
    algebra and FFTs are computed in float32. All else takes what it is given: narrow values give
    narrow results, narrow and float32 ones together float32.

    Only what is computed in float32 changes: an explicit conversion, `preferred_element_type`,
    float64, complex numbers and integers stay. Arguments and results keep their dtypes, so that
    parameters and their gradients are float32. A weight that is used several times, or in each turn
    of a loop, is cast once in a compiled program, and its cotangents are summed in float32.

    rules: from patterns to "compute", "float32" or "keep" (as its operands come), beside float8 to
    "bfloat16", too; a dictionary or pairs, of which the first that matches holds. A pattern is the
    name of an op, as printed in programs, the path of a `named_scope`, or the key path of a leaf of
    the first argument ("blocks.0.up"; for the products with it), with wildcards (`*`).
    Raises ArgumentError where a rule matches nothing, DTypeError for another dtype.

    >>> layer = lambda w, x: fnp.tanh(x @ w)
    >>> fg.make_jaxpr(fg.autocast(layer))(fnp.ones((3, 2)), fnp.ones(3))
    { lambda ; a:f32[3,2] b:f32[3] . let
        c:bf16[3] = convert_element_type[new_dtype=bfloat16] b
        d:bf16[3,2] = convert_element_type[new_dtype=bfloat16] a
        e:bf16[2] = dot_general[dimension_numbers=(((0,), (0,)), ((), ()))] c d
        f:bf16[2] = tanh e
        g:f32[2] = convert_element_type[new_dtype=float32] f
      in (g,) }
    >>> fg.grad(fg.autocast(lambda w: fnp.sum(layer(w, fnp.ones(3)))))(fnp.ones((3, 2))).dtype
    dtype('float32')
    """
    check_callable("autocast", fun)
    policy = Policy.of(compute, accumulate, rules)

    @wraps(fun, "autocast")
    @boundary
    def cast(*args: Any, **kwargs: Any) -> Tree:
        check_leaves("autocast", fun, args, kwargs)
        leaves, in_tree = tree.flatten((args, kwargs))
        flat = FlatFunction("autocast", labelled(fun, policy, args), in_tree)
        names = leaf_names(fun, args, kwargs)
        jaxpr, consts = stage(flat, avals_of(leaves), f"autocast({name_of(fun)})", names)
        return flat.unflatten(eval_jaxpr(autocast_jaxpr(jaxpr, policy), *consts, *leaves))

    return cast


def autocast_jaxpr(jaxpr: Jaxpr, policy: Policy) -> Jaxpr:
    """The program in mixed precision.

    >>> import funcgrad as fg
    >>> jaxpr = fg.make_jaxpr(lambda x: x @ x)(fnp.ones((2, 2))).jaxpr
    >>> print(autocast_jaxpr(jaxpr, Policy.of("float16", "float32", None)).eqns[-1].prim)
    convert_element_type
    """
    policy.check(jaxpr)
    if policy.compute == WIDE:
        return jaxpr
    narrow = cast_once(rewrite(jaxpr, policy), policy.compute)
    # float16 has too small a range for factors.
    return keep_narrow(narrow, policy.compute) if policy.compute.name == "bfloat16" else narrow
