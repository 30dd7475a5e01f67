"""The vocabulary of programs: primitives, a file a family. Nothing here knows of a backend."""
