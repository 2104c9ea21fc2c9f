import os

# The kernels run in Triton's interpreter: slow, but on any machine. Read when they are imported.
os.environ["TRITON_INTERPRET"] = "1"
