"""Per-device programs and passes over them.

- `decomposed`: gathers before products, and scatters after them, in blocks round a ring
- `mail`: messages between ranks of a job that wait until they are needed
- `overlap`: collectives in two parts, a start and an end, with other work in between
- `passes`: passes over per-device programs: when sums over devices are done, and how many at once
- `program`: per-device programs: what one device of a mesh runs, and how its arrays are cut
- `rings`: products with their gather or scatter, block by block round a ring of devices
"""
