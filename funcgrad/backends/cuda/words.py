"""The hardware's words: functions that kernels call, each defined twice.

A kernel's text is the same for a GPU and for its simulator. What only hardware can say (which
thread this is, what another lane holds, that all have come so far) it says by these words, which
are intrinsics on a GPU. In the simulator a thread is a fiber of libc's `swapcontext`: a barrier is
a switch, so that a thread runs alone until it waits, in an order that the caller shuffles.

- `fg_thread()`, `fg_block()`: the numbers of the thread in its block, and of the block
- `fg_xor(v, m)`: what the lane whose number differs by the bits of m holds as v
- `fg_sync()`, `fg_sync_warp()`: wait for the block's, the warp's threads
- `fg_at(i, n)`: an element i of n is going to be read or written
"""

from __future__ import annotations

THREADS = 1024  # the most that a block has
_STACK, _CONTEXT = 1 << 16, 1024  # bytes of a fiber; glibc's ucontext_t has 968

DEVICE = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.shfl.sync.bfly.i32(i32, i32, i32, i32) convergent
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32) convergent
declare void @llvm.nvvm.bar.warp.sync(i32) convergent

define internal i32 @fg_thread() alwaysinline {
  %x = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  ret i32 %x
}

define internal i32 @fg_block() alwaysinline {
  %x = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  ret i32 %x
}

define internal i32 @fg_xor(i32 %v, i32 %mask) alwaysinline convergent {
  %x = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %v, i32 %mask, i32 31)
  ret i32 %x
}

define internal void @fg_sync() alwaysinline convergent {
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  ret void
}

define internal void @fg_sync_warp() alwaysinline convergent {
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
  ret void
}

define internal void @fg_at(i32 %i, i32 %n) alwaysinline {
  ret void
}
"""

SIMULATOR = f"""
declare i32 @swapcontext(ptr, ptr)
declare i32 @getcontext(ptr)
declare void @makecontext(ptr, ptr, i32, ...)
declare ptr @malloc(i64)
declare void @free(ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

@fg_thread_now = internal global i32 0
@fg_block_now = internal global i32 0
@fg_ended = internal global i32 0
@fg_faults = internal global i32 0
@fg_contexts = internal global ptr null
@fg_entry = internal global ptr null
@fg_arguments = internal global ptr null
@fg_main = internal global [{_CONTEXT} x i8] zeroinitializer, align 16
@fg_lanes = internal global [{THREADS} x i32] zeroinitializer

define internal i32 @fg_thread() {{
  %x = load volatile i32, ptr @fg_thread_now
  ret i32 %x
}}

define internal i32 @fg_block() {{
  %x = load volatile i32, ptr @fg_block_now
  ret i32 %x
}}

define internal void @fg_at(i32 %i, i32 %n) alwaysinline {{
  %inside = icmp ult i32 %i, %n
  br i1 %inside, label %done, label %fault
fault:
  %k = load i32, ptr @fg_faults
  %more = add i32 %k, 1
  store i32 %more, ptr @fg_faults
  br label %done
done:
  ret void
}}

define internal ptr @fg_context(i32 %i) {{
  %all = load ptr, ptr @fg_contexts
  %wide = zext i32 %i to i64
  %o = mul i64 %wide, {_CONTEXT}
  %p = getelementptr i8, ptr %all, i64 %o
  ret ptr %p
}}

define internal void @fg_sync() noinline {{
  %i = load volatile i32, ptr @fg_thread_now
  %p = call ptr @fg_context(i32 %i)
  %r = call i32 @swapcontext(ptr %p, ptr @fg_main)
  ret void
}}

define internal void @fg_sync_warp() {{
  call void @fg_sync()
  ret void
}}

define internal i32 @fg_xor(i32 %v, i32 %mask) noinline {{
  %i = load volatile i32, ptr @fg_thread_now
  %p = getelementptr i32, ptr @fg_lanes, i32 %i
  store volatile i32 %v, ptr %p
  call void @fg_sync()
  %j = xor i32 %i, %mask
  %q = getelementptr i32, ptr @fg_lanes, i32 %j
  %w = load volatile i32, ptr %q
  call void @fg_sync()
  ret i32 %w
}}

define internal void @fg_fiber() {{
  %f = load ptr, ptr @fg_entry
  %a = load ptr, ptr @fg_arguments
  call void %f(ptr %a)
  %e = load volatile i32, ptr @fg_ended
  %more = add i32 %e, 1
  store volatile i32 %more, ptr @fg_ended
  br label %rest
rest:
  call void @fg_sync()
  br label %rest
}}

define internal void @fg_straight(ptr %f, ptr %a, i32 %threads, ptr %order) {{
entry:
  br label %turn
turn:
  %j = phi i32 [0, %entry], [%next, %turn]
  %at = getelementptr i32, ptr %order, i32 %j
  %t = load i32, ptr %at
  store volatile i32 %t, ptr @fg_thread_now
  call void %f(ptr %a)
  %next = add i32 %j, 1
  %more = icmp ult i32 %next, %threads
  br i1 %more, label %turn, label %done
done:
  ret void
}}

define internal void @fg_together(i32 %threads, ptr %order, ptr %stacks) {{
entry:
  store volatile i32 0, ptr @fg_ended
  br label %init
init:
  %i = phi i32 [0, %entry], [%i1, %init]
  %p = call ptr @fg_context(i32 %i)
  %r = call i32 @getcontext(ptr %p)
  %wide = zext i32 %i to i64
  %so = mul i64 %wide, {_STACK}
  %s = getelementptr i8, ptr %stacks, i64 %so
  %sp = getelementptr i8, ptr %p, i32 16
  store ptr %s, ptr %sp
  %size = getelementptr i8, ptr %p, i32 32
  store i64 {_STACK}, ptr %size
  call void (ptr, ptr, i32, ...) @makecontext(ptr %p, ptr @fg_fiber, i32 0)
  %i1 = add i32 %i, 1
  %im = icmp ult i32 %i1, %threads
  br i1 %im, label %init, label %round
round:
  br label %turn
turn:
  %j = phi i32 [0, %round], [%j1, %turn]
  %at = getelementptr i32, ptr %order, i32 %j
  %t = load i32, ptr %at
  store volatile i32 %t, ptr @fg_thread_now
  %q = call ptr @fg_context(i32 %t)
  %z = call i32 @swapcontext(ptr @fg_main, ptr %q)
  %j1 = add i32 %j, 1
  %jm = icmp ult i32 %j1, %threads
  br i1 %jm, label %turn, label %check
check:
  %e = load volatile i32, ptr @fg_ended
  %all = icmp uge i32 %e, %threads
  br i1 %all, label %done, label %round
done:
  ret void
}}

define i32 @fg_run(ptr %f, ptr %a, i32 %grid, i32 %threads, ptr %order, i1 %waits, ptr %shared,
                   i64 %nbytes) {{
entry:
  store ptr %f, ptr @fg_entry
  store ptr %a, ptr @fg_arguments
  store i32 0, ptr @fg_faults
  %wide = zext i32 %threads to i64
  %cn = mul i64 %wide, {_CONTEXT}
  %cs = call ptr @malloc(i64 %cn)
  store ptr %cs, ptr @fg_contexts
  %sn = mul i64 %wide, {_STACK}
  %stacks = call ptr @malloc(i64 %sn)
  br label %block
block:
  %g = phi i32 [0, %entry], [%next, %after]
  store volatile i32 %g, ptr @fg_block_now
  call void @llvm.memset.p0.i64(ptr %shared, i8 -1, i64 %nbytes, i1 false)
  br i1 %waits, label %fibers, label %straight
fibers:
  call void @fg_together(i32 %threads, ptr %order, ptr %stacks)
  br label %after
straight:
  call void @fg_straight(ptr %f, ptr %a, i32 %threads, ptr %order)
  br label %after
after:
  %next = add i32 %g, 1
  %more = icmp ult i32 %next, %grid
  br i1 %more, label %block, label %done
done:
  call void @free(ptr %cs)
  call void @free(ptr %stacks)
  %faults = load i32, ptr @fg_faults
  ret i32 %faults
}}
"""
