"""Kernels in C, compiled on the machine that uses them."""
