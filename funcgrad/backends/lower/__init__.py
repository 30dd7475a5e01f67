"""What ops become: elements computed in loops, or operands of products and attention.

Elements of a value, read through the equations that define it:

- `pull`: reading one element, down to memory
- `rules`: the table of rules, an op each, and what reductions combine with
- `shape`: structural ops: where each element of the result comes from
- `index`: reads at positions known only at run time: dynamic slices, gathers
- `windows`: ops that look at windows, and positions of extrema
- `convolution`: windows that convolutions meet, as operands of products
- `primitives`: primitives that exist only between rewriting and loops

Operands of large steps, read where they lie:

- `views`: values that are others seen in another order, or with zeros around
- `gemms`: products as matrix multiplications: rows, columns, batches, strides
- `attention`: attention's operands and their axes in memory
"""
