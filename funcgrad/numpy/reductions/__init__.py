"""From many elements to few: sums, extrema, means, ranks and counts.

- `cumulative`: running sums, products and extrema along an axis, and sums of differences
- `nan`: reductions that leave NaN out, and weighted means
- `quantiles`: quantiles, percentiles and medians, by all methods of NumPy
- `reductions`: sums, products, extrema, means and truth over axes
- `statistics`: histograms and counts, covariance and correlation
"""
