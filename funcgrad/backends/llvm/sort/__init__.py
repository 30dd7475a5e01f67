"""Sorts as generated code.

- `functions`: which host steps they run, and the functions that do
- `keys`: numbers as unsigned integers that sort as they do
- `rows`: sorts of rows: by ranks alone, or as an order that several arrays follow
- `radix`: radix sorts, stable, digit by digit
- `buckets`: long rows, split into buckets that caches hold
- `network`: a sorting network of words, without branches
- `top`: the k greatest numbers of rows
- `shuffle`: sorts by random words, which are made as they are needed
"""
