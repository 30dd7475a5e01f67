"""What a program is: avals, primitives, jaxprs, traces and arrays."""
