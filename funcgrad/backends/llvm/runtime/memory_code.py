"""The native code of the allocator that keeps memory: blocks of dead arrays, for the next ones.

A block is a header of 64 bytes, its size and whether it is to be kept (else, what memory it is in),
and the data. The table lists idle blocks and their sizes, the most recently freed last; a block
serves requests of half its size or more.
`fg_memory_take` and `fg_memory_give` are for arenas, the rest is NumPy's protocol (NEP 49), where
what is small comes from the C library.
"""

from __future__ import annotations

from funcgrad.core.eager.large import LARGE

HUGE_PAGE = 1 << 21
SLOTS = 256
# Numbers that Python reads, each a global fg_memory_…: bytes in use, the most there were, idle
# bytes, idle blocks, the most bytes that may be idle, blocks used again, blocks made.
NUMBERS = ("used", "peak", "idle", "count", "limit", "reused", "made")
_MADV_HUGEPAGE = 14

IR = f"""
@fg_memory_lock = global i32 0, align 64
{"".join(f"@fg_memory_{name} = global i64 0{chr(10)}" for name in NUMBERS)}
@table = internal global [{SLOTS} x ptr] zeroinitializer
@sizes = internal global [{SLOTS} x i64] zeroinitializer

declare i32 @posix_memalign(ptr, i64, i64)
declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @madvise(ptr, i64, i32)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
declare ptr @llvm.ptrmask.p0.i64(ptr, i64)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare {{i64, i1}} @llvm.umul.with.overflow.i64(i64, i64)

define internal void @acquire() {{
entry:
  br label %try
try:
  %old = atomicrmw xchg ptr @fg_memory_lock, i32 1 acquire
  %free = icmp eq i32 %old, 0
  br i1 %free, label %done, label %try
done:
  ret void
}}

define internal void @release() {{
entry:
  store atomic i32 0, ptr @fg_memory_lock release, align 4
  ret void
}}

define internal void @add(ptr %number, i64 %amount) {{
entry:
  %old = load i64, ptr %number
  %new = add i64 %old, %amount
  store i64 %new, ptr %number
  ret void
}}

; Takes entry i out of the table, whose lock is held.
define internal ptr @remove(i64 %i) {{
entry:
  %slot = getelementptr ptr, ptr @table, i64 %i
  %block = load ptr, ptr %slot
  %place = getelementptr i64, ptr @sizes, i64 %i
  %size = load i64, ptr %place
  %less = sub i64 0, %size
  call void @add(ptr @fg_memory_idle, i64 %less)
  call void @add(ptr @fg_memory_count, i64 -1)
  %left = load i64, ptr @fg_memory_count
  %behind = sub i64 %left, %i
  %bytes = mul i64 %behind, 8
  %next = getelementptr ptr, ptr %slot, i64 1
  call void @llvm.memmove.p0.p0.i64(ptr %slot, ptr %next, i64 %bytes, i1 false)
  %after = getelementptr i64, ptr %place, i64 1
  call void @llvm.memmove.p0.p0.i64(ptr %place, ptr %after, i64 %bytes, i1 false)
  ret ptr %block
}}

; An idle block, or null; what is taken counts as used, in either case.
define internal ptr @find(i64 %size) {{
entry:
  %most = mul i64 %size, 2
  call void @acquire()
  %count = load i64, ptr @fg_memory_count
  br label %look
look:
  %above = phi i64 [%count, %entry], [%i, %next]
  %some = icmp sgt i64 %above, 0
  br i1 %some, label %test, label %none
test:
  %i = sub i64 %above, 1
  %slot = getelementptr i64, ptr @sizes, i64 %i
  %has = load i64, ptr %slot
  %enough = icmp uge i64 %has, %size
  %modest = icmp ule i64 %has, %most
  %fits = and i1 %enough, %modest
  br i1 %fits, label %take, label %next
next:
  br label %look
take:
  %found = call ptr @remove(i64 %i)
  call void @add(ptr @fg_memory_reused, i64 1)
  br label %done
none:
  call void @add(ptr @fg_memory_made, i64 1)
  br label %done
done:
  %result = phi ptr [null, %none], [%found, %take]
  %bytes = phi i64 [%size, %none], [%has, %take]
  call void @add(ptr @fg_memory_used, i64 %bytes)
  %used = load i64, ptr @fg_memory_used
  %before = load i64, ptr @fg_memory_peak
  %peak = call i64 @llvm.umax.i64(i64 %used, i64 %before)
  store i64 %peak, ptr @fg_memory_peak
  call void @release()
  ret ptr %result
}}

define internal ptr @fresh(i64 %size, i64 %align) {{
entry:
  %box = alloca ptr
  %total = add i64 %size, 64
  %error = call i32 @posix_memalign(ptr %box, i64 %align, i64 %total)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %none, label %made
made:
  %block = load ptr, ptr %box
  %advised = icmp ugt i64 %align, 64
  br i1 %advised, label %advise, label %label
advise:
  %ignored = call i32 @madvise(ptr %block, i64 %total, i32 {_MADV_HUGEPAGE})
  br label %label
label:
  store i64 %size, ptr %block
  %kind = getelementptr i64, ptr %block, i64 1
  store i64 1, ptr %kind
  ret ptr %block
none:
  ret ptr null
}}

define ptr @fg_memory_take(ptr %ctx, i64 %size) {{
entry:
  %old = call ptr @find(i64 %size)
  %reuse = icmp ne ptr %old, null
  br i1 %reuse, label %good, label %new
new:
  %huge = icmp uge i64 %size, {2 * HUGE_PAGE}
  %align = select i1 %huge, i64 {HUGE_PAGE}, i64 64
  %first = call ptr @fresh(i64 %size, i64 %align)
  %short = icmp eq ptr %first, null
  br i1 %short, label %again, label %good
again:
  ; Idle blocks of other sizes may be what is missing.
  %freed = call i64 @fg_memory_empty()
  %second = call ptr @fresh(i64 %size, i64 %align)
  %failed = icmp eq ptr %second, null
  br i1 %failed, label %none, label %good
good:
  %block = phi ptr [%old, %entry], [%first, %new], [%second, %again]
  %data = getelementptr i8, ptr %block, i64 64
  ret ptr %data
none:
  %less = sub i64 0, %size
  call void @acquire()
  call void @add(ptr @fg_memory_used, i64 %less)
  call void @release()
  ret ptr null
}}

define void @fg_memory_give(ptr %ctx, ptr %data, i64 %ignored) {{
entry:
  %null = icmp eq ptr %data, null
  br i1 %null, label %out, label %begin
begin:
  %block = getelementptr i8, ptr %data, i64 -64
  %size = load i64, ptr %block
  %kind = getelementptr i64, ptr %block, i64 1
  %kept = load i64, ptr %kind
  %small = icmp eq i64 %kept, 0
  br i1 %small, label %forget, label %large
forget:
  %place.of = getelementptr i64, ptr %block, i64 2
  %whole = load ptr, ptr %place.of
  call void @free(ptr %whole)
  br label %out
large:
  %negative = sub i64 0, %size
  call void @acquire()
  call void @add(ptr @fg_memory_used, i64 %negative)
  br label %again
again:
  %limit = load i64, ptr @fg_memory_limit
  %count = load i64, ptr @fg_memory_count
  %idle = load i64, ptr @fg_memory_idle
  %sum = add i64 %idle, %size
  %over = icmp ugt i64 %sum, %limit
  %full = icmp eq i64 %count, {SLOTS}
  %much = or i1 %over, %full
  %empty = icmp eq i64 %count, 0
  br i1 %much, label %crowded, label %keep
crowded:
  br i1 %empty, label %refuse, label %evict
refuse:
  call void @release()
  br label %drop
evict:
  %oldest = call ptr @remove(i64 0)
  call void @release()
  call void @free(ptr %oldest)
  call void @acquire()
  br label %again
keep:
  %slot = getelementptr ptr, ptr @table, i64 %count
  store ptr %block, ptr %slot
  %place = getelementptr i64, ptr @sizes, i64 %count
  store i64 %size, ptr %place
  call void @add(ptr @fg_memory_count, i64 1)
  store i64 %sum, ptr @fg_memory_idle
  call void @release()
  br label %out
drop:
  call void @free(ptr %block)
  br label %out
out:
  ret void
}}

; Frees idle blocks: the bytes there were of them.
define i64 @fg_memory_empty() {{
entry:
  br label %next
next:
  %freed = phi i64 [0, %entry], [%more, %some]
  call void @acquire()
  %count = load i64, ptr @fg_memory_count
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %some
some:
  %last = sub i64 %count, 1
  %block = call ptr @remove(i64 %last)
  call void @release()
  %size = load i64, ptr %block
  %more = add i64 %freed, %size
  call void @free(ptr %block)
  br label %next
done:
  call void @release()
  ret i64 %freed
}}

define ptr @fg_memory_malloc(ptr %ctx, i64 %size) {{
entry:
  %large = icmp uge i64 %size, {LARGE}
  br i1 %large, label %keep, label %small
keep:
  %kept = call ptr @fg_memory_take(ptr %ctx, i64 %size)
  ret ptr %kept
small:
  ; What aligns to more than 16 bytes takes the C library much longer than what doesn't.
  %total = add i64 %size, 128
  %whole = call ptr @malloc(i64 %total)
  %failed = icmp eq ptr %whole, null
  br i1 %failed, label %none, label %made
made:
  %above = getelementptr i8, ptr %whole, i64 63
  %block = call ptr @llvm.ptrmask.p0.i64(ptr %above, i64 -64)
  store i64 %size, ptr %block
  %kind = getelementptr i64, ptr %block, i64 1
  store i64 0, ptr %kind
  %place = getelementptr i64, ptr %block, i64 2
  store ptr %whole, ptr %place
  %data = getelementptr i8, ptr %block, i64 64
  ret ptr %data
none:
  ret ptr null
}}

define ptr @fg_memory_zeros(ptr %ctx, i64 %n, i64 %width) {{
entry:
  %pair = call {{i64, i1}} @llvm.umul.with.overflow.i64(i64 %n, i64 %width)
  %size = extractvalue {{i64, i1}} %pair, 0
  %wraps = extractvalue {{i64, i1}} %pair, 1
  br i1 %wraps, label %none, label %take
take:
  %data = call ptr @fg_memory_malloc(ptr %ctx, i64 %size)
  %failed = icmp eq ptr %data, null
  br i1 %failed, label %none, label %clear
clear:
  call void @llvm.memset.p0.i64(ptr %data, i8 0, i64 %size, i1 false)
  ret ptr %data
none:
  ret ptr null
}}

define ptr @fg_memory_resize(ptr %ctx, ptr %data, i64 %size) {{
entry:
  %new = call ptr @fg_memory_malloc(ptr %ctx, i64 %size)
  %failed = icmp eq ptr %new, null
  %first = icmp eq ptr %data, null
  %nothing = or i1 %failed, %first
  br i1 %nothing, label %out, label %copy
copy:
  %block = getelementptr i8, ptr %data, i64 -64
  %had = load i64, ptr %block
  %both = call i64 @llvm.umin.i64(i64 %had, i64 %size)
  call void @llvm.memcpy.p0.p0.i64(ptr %new, ptr %data, i64 %both, i1 false)
  call void @fg_memory_give(ptr %ctx, ptr %data, i64 0)
  br label %out
out:
  ret ptr %new
}}
"""
