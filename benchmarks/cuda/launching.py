"""`launches`' texts: small kernels, and the native loops of the host that start them."""

from __future__ import annotations

from benchmarks.cuda import texts

_SMALL = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
define ptx_kernel void @small(ptr addrspace(1) %x) {
 BEGIN
 %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
 %c = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
 %m = mul i32 %c, 256
 %i = add i32 %m, %t
 %p = getelementptr float, ptr addrspace(1) %x, i32 %i
 %v = load float, ptr addrspace(1) %p
 %w = fadd float %v, 1.0
 store float %w, ptr addrspace(1) %p
 ret void
}
"""
_WAITS = (
    'call void asm sideeffect "griddepcontrol.launch_dependents;", ""()\n'
    ' call void asm sideeffect "griddepcontrol.wait;", "~{memory}"()'
)
_TURN = """
declare void @cudaGraphSetConditional(i64, i32)
define ptx_kernel void @turn(i64 %handle, ptr addrspace(1) %left) {
 %n = load i32, ptr addrspace(1) %left
 %m = sub i32 %n, 1
 store i32 %m, ptr addrspace(1) %left
 %more = icmp sgt i32 %m, 0
 %go = zext i1 %more to i32
 call void @cudaGraphSetConditional(i64 %handle, i32 %go)
 ret void
}
"""
_COUNT = """
define ptx_kernel void @count(ptr addrspace(1) %left) {
 %n = load i32, ptr addrspace(1) %left
 %m = sub i32 %n, 1
 store i32 %m, ptr addrspace(1) %left
 ret void
}
"""
# Until it ends, what was started after it waits in the queue.
_HOLD = """
declare i64 @llvm.nvvm.read.ptx.sreg.globaltimer()
define ptx_kernel void @hold(i64 %nanoseconds) {
entry:
 %start = call i64 @llvm.nvvm.read.ptx.sreg.globaltimer()
 br label %wait
wait:
 %now = call i64 @llvm.nvvm.read.ptx.sreg.globaltimer()
 %past = sub i64 %now, %start
 %over = icmp ugt i64 %past, %nanoseconds
 br i1 %over, label %done, label %wait
done:
 ret void
}
"""
# many(launch, kernel, grid, block, stream, params, n): n launches from native code.
HOST = """
define i32 @many(ptr %launch, ptr %f, i32 %grid, i32 %block, ptr %stream, ptr %params, i32 %n) {
entry:
 br label %loop
loop:
 %k = phi i32 [0, %entry], [%next, %loop]
 %r = call i32 %launch(ptr %f, i32 %grid, i32 1, i32 1, i32 %block, i32 1, i32 1, i32 0,
   ptr %stream, ptr %params, ptr null)
 %next = add i32 %k, 1
 %more = icmp ult i32 %next, %n
 br i1 %more, label %loop, label %done
done:
 ret i32 %r
}
define i32 @many_ex(ptr %launch, ptr %config, ptr %f, ptr %params, i32 %n) {
entry:
 br label %loop
loop:
 %k = phi i32 [0, %entry], [%next, %loop]
 %r = call i32 %launch(ptr %config, ptr %f, ptr %params, ptr null)
 %next = add i32 %k, 1
 %more = icmp ult i32 %next, %n
 br i1 %more, label %loop, label %done
done:
 ret i32 %r
}
define i32 @copied(ptr %launch, ptr %copy, ptr %wait, ptr %f, ptr %stream, ptr %params, ptr %flag,
  i64 %left, i32 %n) {
entry:
 br label %loop
loop:
 %k = phi i32 [0, %entry], [%next, %loop]
 %r = call i32 %launch(ptr %f, i32 1, i32 1, i32 1, i32 1, i32 1, i32 1, i32 0,
   ptr %stream, ptr %params, ptr null)
 %s = call i32 %copy(ptr %flag, i64 %left, i64 4, ptr %stream)
 %t = call i32 %wait(ptr %stream)
 %next = add i32 %k, 1
 %more = icmp ult i32 %next, %n
 br i1 %more, label %loop, label %done
done:
 %rs = or i32 %r, %s
 %all = or i32 %rs, %t
 ret i32 %all
}
define i32 @polled(ptr %launch, ptr %f, ptr %stream, ptr %params, ptr %flag, i32 %n) {
entry:
 br label %loop
loop:
 %left = phi i32 [%n, %entry], [%now, %seen]
 %r = call i32 %launch(ptr %f, i32 1, i32 1, i32 1, i32 1, i32 1, i32 1, i32 0,
   ptr %stream, ptr %params, ptr null)
 %bad = icmp ne i32 %r, 0
 br i1 %bad, label %done, label %poll
poll:
 %now = load volatile i32, ptr %flag
 %same = icmp eq i32 %now, %left
 br i1 %same, label %poll, label %seen
seen:
 %more = icmp sgt i32 %now, 0
 br i1 %more, label %loop, label %done
done:
 ret i32 %r
}
"""


def _empty(params: int) -> str:
    listed = ", ".join(f"ptr addrspace(1) %p{i}" for i in range(params))
    return f"define ptx_kernel void @empty{params}({listed}) {{\n ret void\n}}\n"


def ptx_texts() -> dict[str, str]:
    """By name: the PTX of this module's kernels."""
    return {
        "launch_small": texts.ptx(_SMALL.replace("BEGIN", "") + _COUNT),
        "launch_waits": texts.ptx(_SMALL.replace("BEGIN", _WAITS)),
        "launch_empty": texts.ptx("".join(map(_empty, (1, 3, 8, 16)))),
        "launch_turn": texts.ptx(_TURN),
        "launch_hold": texts.ptx(_HOLD),
    }
