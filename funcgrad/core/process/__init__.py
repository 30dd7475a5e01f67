"""Care of the process: locks that survive a fork, the collector of cycles, floating-point errors,
modules that load late.

- `float_errors`: floating-point errors pass silently while operations run on NumPy: NaN and inf say
  enough
- `fork`: locks and threads of a process that may be forked
- `gc_pause`: A rest for Python's collector of cycles, while a block makes many objects that stay
- `lazy`: names of a package whose modules load when a name is first asked for
"""
