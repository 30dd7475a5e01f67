"""Programs as steps, before anything has an address: `plan` gives one to each tensor.

- `drafter`: from a program to its steps, and what each of them reads and writes
- `tensors`: values in memory, and drafts of the steps that compute them
- `steps`: steps that targets may have: products, attention, exchanges
- `control`: steps of all targets: control flow, copies
- `scalar_loops`: loops over a few numbers, as one kernel that keeps them in registers
"""
