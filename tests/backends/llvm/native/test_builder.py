"""The builder of IR: what it writes does what was asked, and is what llvmlite writes."""

import ctypes

import numpy as np
import pytest
from llvmlite import ir as theirs

from funcgrad.backends.llvm.native import compiler, ir
from funcgrad.backends.llvm.native.builder import IRBuilder
from funcgrad.backends.llvm.native.compiler import InvalidIR
from funcgrad.backends.llvm.native.engine import engine

I64, F32, F64 = ir.I64, ir.FloatType(), ir.DoubleType()


def written(t, builder, name="f"):
    """`f(x, y)`, by the types of a module and by a builder that are theirs or ours."""
    module, i64, f32 = t.Module("m"), t.IntType(64), t.FloatType()
    f = t.Function(module, t.FunctionType(f32, [f32, i64]), name)
    f.attributes.add("nounwind")
    b = builder(f.append_basic_block("entry"))
    x, n = f.args
    with b.if_else(b.icmp_signed("<", n, i64(3))) as (few, many):
        with few:
            b.ret(b.fneg(x))
        with many:
            lanes = t.VectorType(f32, 4)
            v = b.bitcast(
                b.insert_element(t.Constant(lanes, [0.1, -2.5, 1e-40, 0]), x, t.IntType(32)(1)),
                t.VectorType(t.IntType(32), 4),
            )
            v = b.and_(b.not_(v), b.shuffle_vector(v, v, t.Constant(v.type, [3, 2, 1, 0])))
            on = b.fcmp_unordered("uno", b.bitcast(v, lanes), b.bitcast(v, lanes))
            some = b.select(on, v, t.Constant(v.type, [7] * 4))
            found = b.extract_element(some, t.IntType(32)(2))
            b.ret(b.fptrunc(b.fadd(b.sitofp(found, t.DoubleType()), t.DoubleType()(0.3)), f32))
    b.unreachable()
    return module


def code(module):
    return compiler.compiled(engine().target, str(module), 1, lambda m: m.code())


def test_it_writes_what_llvmlite_writes():
    assert code(written(ir, IRBuilder)) == code(written(theirs, theirs.IRBuilder))


def test_equal_types_are_the_same():
    assert ir.VectorType(ir.FloatType(), 8) is ir.VectorType(F32, 8)
    assert ir.VectorType(F32, 8) is not ir.VectorType(F32, 4) is not ir.ArrayType(F32, 4)
    names = [str(ir.ArrayType(ir.VectorType(F64, 2), 3)), str(ir.StructType(I64, ir.I1))]
    assert names == ["[3 x <2 x double>]", "{ i64, i1 }"]
    assert [ir.VectorType(F32, 8).intrinsic_name, ir.PTR.intrinsic_name] == ["v8f32", "p0"]


@pytest.mark.parametrize(("kind", "dtype"), [(F32, "f4"), (F64, "f8"), (ir.HalfType(), "f2")])
def test_constants_keep_all_bits(kind, dtype):
    values = [0.1, -0.0, 1e-7, 65504, np.inf, np.nan, np.finfo(dtype).tiny]
    array, module = ir.ArrayType(kind, len(values)), ir.Module()
    table = ir.GlobalVariable(module, array, "table")
    table.initializer = ir.Constant(array, [float(np.dtype(dtype).type(v)) for v in values])
    lib = engine().compile(str(module))
    found = (ctypes.c_char * (np.dtype(dtype).itemsize * len(values))).from_address(
        lib.address("table")
    )
    np.testing.assert_array_equal(np.frombuffer(found, dtype), np.array(values, dtype))


def test_loops_switches_memory_and_intrinsics():
    module = ir.Module()
    f = ir.Function(module, ir.FunctionType(I64, [I64, I64]), "sum_or_zeros")
    entry, loop, end, zeros, no = map(f.append_basic_block, ("entry", "loop", "end", "zeros", "no"))
    b = IRBuilder(entry)
    slot = b.alloca(I64, I64(2), align=16)
    b.switch(f.args[0], no, [(0, loop), (5, zeros)])
    b.position_at_end(loop)
    i = b.phi(I64)
    total = b.phi(I64)
    i.add_incoming(I64(0), entry)
    total.add_incoming(I64(0), entry)
    more = b.add(i, I64(1))
    both = b.add(total, more)
    i.add_incoming(more, loop)
    total.add_incoming(both, loop)
    b.cbranch(b.icmp_unsigned("<", more, f.args[1]), loop, end)
    b.position_at_end(end)
    place = b.gep(slot, [I64(1)], I64)
    b.store(both, place)
    old = b.atomic_rmw("add", place, I64(1), "monotonic")
    pair = b.cmpxchg(place, b.add(old, I64(1)), I64(0), "acquire", "acquire")
    b.ret(b.add(b.load(place, I64), b.extract_value(pair, 0)))
    b.position_at_end(zeros)
    b.ret(b.cttz(f.args[1], ir.I1(0)))
    b.position_at_end(no)
    b.ret(I64(-1))
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
        engine().compile(module).address("sum_or_zeros")
    )
    assert [call(0, 10), call(5, 24), call(5, 0), call(7, 1)] == [56, 3, 64, -1]


def test_what_is_wrong_is_found():
    module = ir.Module()
    f = ir.Function(module, ir.FunctionType(I64, [F32]), "wrong")
    b = IRBuilder(f.append_basic_block())
    b.ret(f.args[0])
    with pytest.raises(InvalidIR, match="value doesn't match function result type 'i64'"):
        code(module)
    with pytest.raises(AssertionError, match="ret float"):
        b.ret_void()
    with pytest.raises(AssertionError, match="wrong"):
        ir.Function(module, ir.FunctionType(I64, []), "wrong")
