"""Words and names that native eager calls share: what `eager` writes and native code reads.

An entry is words (i64): a head, then the parts it points at by their place. `ENV` are facts of this
process, set once after loading.
"""

from __future__ import annotations

# An entry's head.
(
    TYPES,  # the context's `types`, which stands for its settings
    ARGS,  # number of arguments, those by name included
    NAMES,  # number of those by name: the last ones
    NODES,  # place of what the arguments are, then the names
    OPERANDS,  # place of the operands
    INS,  # number of operands
    WAY,  # how the result is computed
    LOOP, DATA,  # NumPy's inner loop and its data
    COUNT,  # of elements that the loop runs over
    FUNCTION,  # what is called where the loop can't be: of ndarrays
    KERNEL,  # where words are that tell of a compiled operation, zeros until there is one, or 0
    FINISH,  # function(what it returned) → Array, where that isn't an ndarray of the dtype
    DTYPE, WEAK, AVAL, ITEM,  # of the result; bytes of an element
    NDIM, SHAPE,  # of the result; place of its sizes
    HEAD_WORDS,
) = range(20)  # fmt: skip

# Ways: only calls, of what returns a sequence of one if that is said; a loop over all elements; a
# reduction of all elements by a loop, which begins with zero.
CALL, EACH, SUM, LISTED = 0, 1, 2, 4

# What an argument is, with the words that follow.
ARRAY = 0  # dtype, weak type, ndim, *shape
NUMBER = 1  # its type; a Python number, an operand
OBJECT = 2  # object: this very object, or an equal int
OBJECTS = 3  # n, *objects: a tuple of them

# An operand: the argument it is (or -1), or else the ndarray it is, the bytes from one element to
# the next, and where a Python number is to become an element: its dtype, kind and size.
ARGUMENT, CONSTANT, STRIDE, NUMBER_DTYPE, NUMBER_KIND, NUMBER_SIZE, OPERAND_WORDS = range(7)
FLOAT, SIGNED, UNSIGNED = 0, 1, 2

BUCKETS = 64
MIX = 0x9E3779B97F4A7C15  # by which hashes are multiplied: 2**64 over the golden ratio
MAX_ARGS, MAX_OPERANDS = 12, 6

ENV = (
    "Array", "ndarray", "None", "float", "int", "tuple", "variable", "root", "trace", "types",
    "new_array", "value", "weak_type", "gone", "aval", "errors", "silent",
)  # fmt: skip
