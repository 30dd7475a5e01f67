"""How programs and arrays look, as text and in notebooks.

- `array_html`: arrays as HTML
- `compile_report`: where the time of a compilation went: what `Compiled.compile_report()` gives
- `jaxpr_html`: programs and compiled functions as HTML, for notebooks with light and with dark
  pages
- `jaxpr_text`: programs as text; `show_html` and `show_array` are for notebooks
- `tracebacks`: tracebacks of users' errors without the library's own frames
"""
