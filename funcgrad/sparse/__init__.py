"""Sparse arrays: of which few elements are stored. Names and meaning are JAX's experimental ones.

`BCOO` and `BCSR` are pytrees of plain arrays, with batch axes in front and dense axes behind, and
go through `jit`, `vmap` and shardings as such. `sparsify` runs a function of dense arrays on them,
`grad` differentiates with respect to what is stored. Nothing is made dense unless it is asked for.

- `arrays`: the two formats, what is said of them, and what users' arguments must be
- `layout`: to and from dense arrays and SciPy's, sorted, without duplicates, kinds of axes
- `compressed`: matrices row by row
- `products`: with dense arrays, with each other, and of dense ones at some places
- `structure`: transposed, summed, reshaped, cut, joined
- `elementwise`: arithmetic that keeps zeros
- `creation`: empty ones, diagonals, random ones
- `methods`: operators and methods of the formats
- `rules`: what operations of programs are of sparse arrays
- `transform`: `sparsify`, which interprets programs by these rules
- `derivatives`: gradients with respect to what is stored
- `linalg`: direct solutions
- `display`: as HTML
"""

from funcgrad.errors import SparseEfficiencyError
from funcgrad.sparse import linalg
from funcgrad.sparse.arrays import BCOO, BCSR, JAXSparse
from funcgrad.sparse.compressed import (
    bcsr_extract,
    bcsr_fromdense,
    bcsr_sum_duplicates,
    bcsr_todense,
)
from funcgrad.sparse.creation import empty, eye, random_bcoo
from funcgrad.sparse.derivatives import grad, jacfwd, jacobian, jacrev, value_and_grad
from funcgrad.sparse.elementwise import bcoo_multiply_dense, bcoo_multiply_sparse
from funcgrad.sparse.layout import (
    SparseEfficiencyWarning,
    bcoo_eliminate_zeros,
    bcoo_extract,
    bcoo_fromdense,
    bcoo_sort_indices,
    bcoo_sum_duplicates,
    bcoo_todense,
    bcoo_update_layout,
)
from funcgrad.sparse.methods import attach
from funcgrad.sparse.products import (
    bcoo_dot_general,
    bcoo_dot_general_sampled,
    bcsr_dot_general,
    bcsr_dot_general_sampled,
)
from funcgrad.sparse.structure import (
    bcoo_broadcast_in_dim,
    bcoo_concatenate,
    bcoo_dynamic_slice,
    bcoo_reduce_sum,
    bcoo_reshape,
    bcoo_rev,
    bcoo_slice,
    bcoo_squeeze,
    bcoo_transpose,
)
from funcgrad.sparse.transform import sparsify, todense

attach()

__all__ = [
    # formats
    "BCOO", "BCSR", "JAXSparse", "SparseEfficiencyError", "SparseEfficiencyWarning",
    # made
    "empty", "eye", "random_bcoo", "bcoo_fromdense", "bcsr_fromdense",
    # functions of dense arrays, and derivatives
    "sparsify", "todense", "grad", "value_and_grad", "jacfwd", "jacrev", "jacobian",
    # operations
    "bcoo_broadcast_in_dim", "bcoo_concatenate", "bcoo_dot_general", "bcoo_dot_general_sampled",
    "bcoo_dynamic_slice", "bcoo_eliminate_zeros", "bcoo_extract", "bcoo_multiply_dense",
    "bcoo_multiply_sparse", "bcoo_reduce_sum", "bcoo_reshape", "bcoo_rev", "bcoo_slice",
    "bcoo_sort_indices", "bcoo_squeeze", "bcoo_sum_duplicates", "bcoo_todense", "bcoo_transpose",
    "bcoo_update_layout", "bcsr_dot_general", "bcsr_dot_general_sampled", "bcsr_extract",
    "bcsr_sum_duplicates", "bcsr_todense",
    # solutions
    "linalg",
]  # fmt: skip
