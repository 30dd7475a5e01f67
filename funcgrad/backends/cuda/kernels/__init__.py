"""Kernels of single ops on a GPU: in the loop language, or for tensor cores.

- `running`: sums, products and extremes so far
- `windows`: convolutions, and the gradients of pooling
- `convolution_tiles`: convolutions by tiles in shared memory
- `sorts`: sorts, and the k greatest
- `scatters`: many scattered updates, row by row
- `gemms`: products that no library takes
- `tails`: what follows a product, done by its call
- `attention`: which attentions have kernels, for tensor cores, and what these get
- `attention_tiles`: what they have in common
- `attention_forward`, `attention_backward`: results, cotangents
- `mma`: the words of tensor cores
- `thread_text`: a thread's text, of kernels of tiles
"""
