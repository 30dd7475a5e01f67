"""Native exchanges through NCCL, whose functions are called by address on the device's stream.

A communicator's context begins with the words that all have; these functions know what follows
(`CONTEXT`). Blocks that only move are bytes to NCCL. A function returns 0, `UNKNOWN` where NCCL has
no sum of a dtype, or NCCL's status times 256 and `FAILED`.
"""

from __future__ import annotations

from collections.abc import Iterator

from funcgrad.backends.rewrites.exchanges import DESCRIPTOR, KINDS

FUNCTIONS = (
    "ncclAllReduce", "ncclAllGather", "ncclReduceScatter", "ncclSend", "ncclRecv",
    "ncclGroupStart", "ncclGroupEnd",
)  # fmt: skip
# Words of a context; `types` has NCCL's number of each dtype, `parts` how many of these it is,
# `ops` NCCL's numbers of ours.
CONTEXT = (*KINDS, "rank", "size", "comm", "stream", "types", "parts", "ops", *FUNCTIONS, "fill")
UNKNOWN, FAILED = 1, 2
_BYTES = 1  # ncclUint8


def module_text() -> str:
    """The module: `fg_nccl_{kind}(context, descriptor)` for each kind of exchange."""
    return "\n".join([_HELPERS, *map(_function, KINDS)])


_HELPERS = """
define internal i32 @failed(i32 %status) alwaysinline {
  %none = icmp eq i32 %status, 0
  %shifted = shl i32 %status, 8
  %told = or i32 %shifted, 2
  %result = select i1 %none, i32 0, i32 %told
  ret i32 %result
}
"""


def _function(kind: str) -> str:
    lines = [f"define i32 @fg_nccl_{kind}(ptr %context, ptr %descriptor) nounwind {{", "entry:"]
    lines += _loads("context", CONTEXT, {"comm", "stream", "types", "parts", "ops", "fill",
                                         *FUNCTIONS})  # fmt: skip
    lines += _loads("descriptor", DESCRIPTOR, {"source", "to", "perm"})
    lines += ["  %nbytes = mul i64 %count, %width"]
    body = {"all_reduce": _reduces, "reduce_scatter": _reduces}.get(kind)
    lines += body(kind) if body else _MOVES[kind].splitlines()
    return "\n".join([*lines, "}"])


def _loads(base: str, names: tuple[str, ...], pointers: set[str]) -> Iterator[str]:
    for i, name in enumerate(names):
        yield f"  %{base}_{i} = getelementptr i64, ptr %{base}, i64 {i}"
        kind = "ptr" if name in pointers else "i64"
        local = f"%{base}.{name}" if name in KINDS else f"%{name}"
        yield f"  {local} = load {kind}, ptr %{base}_{i}"


def _reduces(kind: str) -> Iterator[str]:
    for name, at in (("types", "dtype"), ("parts", "dtype"), ("ops", "op")):
        yield f"  %{name}_at = getelementptr i32, ptr %{name}, i64 %{at}"
        yield f"  %{name}_one = load i32, ptr %{name}_at"
    function = {"all_reduce": "ncclAllReduce", "reduce_scatter": "ncclReduceScatter"}[kind]
    yield f"""  %known = icmp sge i32 %types_one, 0
  br i1 %known, label %go, label %unknown
unknown:
  ret i32 {UNKNOWN}
go:
  %wide = zext i32 %parts_one to i64
  %n = mul i64 %count, %wide
  %s = call i32 %{function}(ptr %source, ptr %to, i64 %n, i32 %types_one, i32 %ops_one, ptr %comm, ptr %stream)
  %r = call i32 @failed(i32 %s)
  ret i32 %r"""  # noqa: E501


_MOVES = {
    "all_gather": f"""  %s = call i32 %ncclAllGather(ptr %source, ptr %to, i64 %nbytes, i32 {_BYTES}, ptr %comm, ptr %stream)
  %r = call i32 @failed(i32 %s)
  ret i32 %r""",  # noqa: E501
    "all_to_all": f"""  %begun = call i32 %ncclGroupStart()
  br label %turn
turn:
  %i = phi i64 [0, %entry], [%next, %turn]
  %status = phi i32 [%begun, %entry], [%all, %turn]
  %peer = trunc i64 %i to i32
  %at = mul i64 %i, %nbytes
  %from = getelementptr i8, ptr %source, i64 %at
  %place = getelementptr i8, ptr %to, i64 %at
  %x = call i32 %ncclSend(ptr %from, i64 %nbytes, i32 {_BYTES}, i32 %peer, ptr %comm, ptr %stream)
  %y = call i32 %ncclRecv(ptr %place, i64 %nbytes, i32 {_BYTES}, i32 %peer, ptr %comm, ptr %stream)
  %both = or i32 %x, %y
  %all = or i32 %status, %both
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %size
  br i1 %more, label %turn, label %done
done:
  %ended = call i32 %ncclGroupEnd()
  %told = or i32 %all, %ended
  %r = call i32 @failed(i32 %told)
  ret i32 %r""",
    "permute": f"""  %mine = mul i64 %rank, 2
  %to_at = getelementptr i64, ptr %perm, i64 %mine
  %receiver = load i64, ptr %to_at
  %from_at = getelementptr i64, ptr %to_at, i64 1
  %sender = load i64, ptr %from_at
  %begun = call i32 %ncclGroupStart()
  %sends = icmp sge i64 %receiver, 0
  br i1 %sends, label %send, label %sent
send:
  %peer = trunc i64 %receiver to i32
  %x = call i32 %ncclSend(ptr %source, i64 %nbytes, i32 {_BYTES}, i32 %peer, ptr %comm, ptr %stream)
  br label %sent
sent:
  %one = phi i32 [0, %entry], [%x, %send]
  %receives = icmp sge i64 %sender, 0
  br i1 %receives, label %receive, label %zeros
receive:
  %other = trunc i64 %sender to i32
  %y = call i32 %ncclRecv(ptr %to, i64 %nbytes, i32 {_BYTES}, i32 %other, ptr %comm, ptr %stream)
  br label %done
zeros:
  %z = call i32 %fill(ptr %to, i8 0, i64 %nbytes, ptr %stream)
  br label %done
done:
  %two = phi i32 [%y, %receive], [%z, %zeros]
  %ended = call i32 %ncclGroupEnd()
  %some = or i32 %begun, %ended
  %more = or i32 %one, %two
  %told = or i32 %some, %more
  %r = call i32 @failed(i32 %told)
  ret i32 %r""",
}
