"""One row of samples an op, from which gradients, batching, compilers and sharding are tested.

A `Row` says which primitive it is about, how to call it, what it means (`oracle`: NumPy, SciPy or a
slow loop), for which dtypes, and on which operands. Operands are drawn from `Arg`s: a shape and a
domain. Families of ops share the functions that make their rows.
"""

from tests.op_samples_attention import ATTENTION
from tests.op_samples_base import all_primitives
from tests.op_samples_elementwise import ELEMENTWISE
from tests.op_samples_grouped import GROUPED
from tests.op_samples_index import INDEX
from tests.op_samples_linalg import LINALG
from tests.op_samples_precision import PRECISION
from tests.op_samples_programs import PROGRAMS
from tests.op_samples_sparse import SPARSE
from tests.op_samples_special import SPECIAL
from tests.op_samples_structure import STRUCTURE

ROWS = (*ELEMENTWISE, *SPECIAL, *STRUCTURE, *INDEX, *LINALG, *PROGRAMS, *ATTENTION, *GROUPED,
        *PRECISION, *SPARSE)  # fmt: skip
PRIMITIVES = all_primitives()
