"""Functions of parameters, called with what isn't an array in a parameter's place.

A quantized matrix, or one with a low-rank adapter, is a `Weight`: it knows its arrays, and what a
product with it is. `with_weights` follows each through the program to where it is used.

- `applied`: `with_weights`, the function that takes weights where the other one takes arrays
- `calls`: weights on their way into the programs of loops, branches, calls and custom rules
- `follow`: a program's run on values and weights, and what of it can be followed
- `leaves`: leaves of a tree of parameters by their names, and rules that choose some of them
- `products`: uses: what is multiplied with a weight, and which of its axes are summed
- `uses`: which leaves of a tree of parameters a function uses, where, and along which axes
- `view`: a weight's axes as an operation sees them, after transposes and reshapes
- `weight`: what stands in an array's place
"""
