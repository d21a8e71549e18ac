"""Layer kinds, one file each: their parameter tensors and what their forward pass saves for
backward.
"""
