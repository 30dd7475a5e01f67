"""Words and names that direct calls share: what `direct` writes and native code reads.

What is matched and built is written as words (i64), in prefix order: a node is its tag, its
operands, its children. `ENV` are facts of this process, set once after loading. Python's C API is
called by name, so object layouts are known of `Array` and of NumPy's objects alone.
"""

from __future__ import annotations

HEAD = object.__basicsize__  # CPython's object head; it is longer in free-threaded builds

# Tags of nodes, with the words that follow.
ARRAY = 0  # dtype, weak type, ndim, *shape: an Array
NDARRAY = 1  # dtype, ndim, *shape: a numpy array
NUMBER = 2  # Python type, bytes (4 or 8; 1 for bool): a Python scalar, converted
NONE = 3
TUPLE = 4  # class, n; n children: a tuple or named tuple
LIST = 5  # class, n; n children
DICT = 6  # class, n; n times a key, which is a str, and a child
CUSTOM = 7  # class, n, function; n children: function(object) gives them as a tuple, or None;
#             in results: function(tuple of children) gives the object
OBJECT = 8  # object: this very object
SCALAR = 9  # class: a NumPy scalar of up to 8 bytes
LEAF = 10  # in results: the next array

# An entry's head. Its nodes begin at `NODES` (n captured arrays: object and node), followed by
# those of args, kwargs, and the result.
(LEAVES, OUTS, SPEC, FLAGS, FAIL, CHECKS, RESULTS, WRITTEN, DONATED, NODES) = range(10)
RELEASE, LARGE = 1, 2

ENV = (
    "Array", "ndarray", "float", "int", "str", "True", "None", "miss", "variable", "new_array",
    "set_handler", "handler", "value", "weak_type", "gone", "aval",
)  # fmt: skip

# The words that tell how a program is run, which `executable` makes.
PROGRAM, CONSTANTS, CALLBACK, ARENA, COMMS = 2, 3, 4, 5, 6

C_CONTIGUOUS, OWNDATA, ALIGNED, WRITEABLE = 0x1, 0x4, 0x100, 0x400
MATCHED, MISSED, ERROR = 0, 1, 2
STATE = {"ins": 0, "held": 1, "given": 2, "scratch": 3, "count": 4}
