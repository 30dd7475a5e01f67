"""Files that stay, written once: `python -m tests.export.golden_files NAME [OP …]`, read for ever.

A file holds the first sample of each op (or of some) in one function, with arguments and results.
When an op's version changes, the older files are kept, and a new one is added.
"""

import sys
from pathlib import Path

import numpy as np

import funcgrad as fg
from funcgrad import export
from tests.op_checks import arrays, function, operands, typical
from tests.op_samples import ROWS

FOLDER = Path(__file__).parent / "golden"
PYTHON = ("pure_callback", "io_callback", "debug_callback")


def rows():
    """The rows that a file can hold and whose results are unique, each op once."""
    chosen = {}
    for row in ROWS:
        if row.prim.name not in PYTHON and row.check is None:
            chosen.setdefault(row.prim, row)
    return list(chosen.values())


def golden(chosen):
    """The function of the first samples of rows, each in a dtype, and its arguments.

    chosen: pairs of row and dtype
    """
    rng = np.random.default_rng(0)
    given = [arrays(operands(row, row.cases[0], rng, dtype)) for row, dtype in chosen]
    functions = [function(row, row.cases[0]) for row, _ in chosen]

    def every_op(*args):
        return [f(*xs) for f, xs in zip(functions, args, strict=True)]

    return every_op, [list(xs) for xs in given]


def main(name, *ops):
    fun, args = golden([(r, typical(r)) for r in rows() if not ops or r.prim.name in ops])
    exported = export.export(fg.jit(fun), rule_order=1)(*args)
    FOLDER.mkdir(exist_ok=True)
    exported.save(FOLDER / f"{name}.fg", samples=[tuple(args)])


if __name__ == "__main__":
    main(*sys.argv[1:])
