"""What is behind a call from Python: native code that reads Python's objects itself.

Of compiled functions:

- `direct`: an entry for each kind of call, and who calls it
- `direct_code`: the native code: matches arguments, runs a program, builds the result
- `direct_match`: its part that matches arguments and collects their memory
- `direct_words`: words and names that `direct` and native code share

Of operations without `jit`:

- `eager`: a table of what calls do, by the types of their arguments
- `eager_probe`: which function of NumPy an operation's `impl` is
- `eager_code`: the native code: finds what is known, computes, makes the Array
- `eager_match`: its part that finds what is known
- `eager_words`: words and names that `eager` and native code share

Of both:

- `direct_layout`: how objects of Python, of NumPy and of ours lie in memory
- `direct_native`: how native code on Python's objects is written
"""
