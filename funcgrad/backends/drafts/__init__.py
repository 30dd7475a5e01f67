"""Programs as steps, before anything has an address: `plan` gives one to each tensor.

- `drafter`: from a program to its steps, and what each of them reads and writes
- `tensors`: values in memory, and drafts of the steps that compute them
- `steps`: steps that are no kernels: products, attention, copies, exchanges
- `control`: control flow: steps with blocks inside
- `scalar_loops`: loops over a few numbers, as one kernel that keeps them in registers
"""
