"""Models, initialisations, local training, aggregation and evaluation (PyTorch)."""

# Named here, where importing them does not import PyTorch.
INITIALISATIONS = (
    "default",
    "xavier-normal",
    "xavier-uniform",
    "kaiming-normal",
    "kaiming-uniform",
)
