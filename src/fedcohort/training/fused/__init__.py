"""Local training of many models at once in kernels of our own, for the GPU."""
