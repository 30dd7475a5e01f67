"""Products whose operands are windows of images, read where they lie or line by line.

- `frames`: copies of images with zeros around them
- `windows`: batches of gathered windows against one A
- `placed`: windows that are read where they lie
- `strips`: windows of image lines, vectors of a line against all features
- `lines`: windows of image lines and few features
- `sums`: gradients of kernels whose features come last
"""
