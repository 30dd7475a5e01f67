"""Ops that look through windows: convolutions and pooling.

- `conv`: convolution of N spatial axes, with strides, padding, dilation of both sides, and groups
- `padding`: sizes under windows, strides, dilation and padding: what convolutions and pooling share
- `pooling`: reductions of every window of an array (pooling), and the ops of their gradients
- `variants`: convolutions said in other words: plain, transposed, as patches, with a kernel a
  position
"""
