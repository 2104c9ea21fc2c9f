"""Models, initialisations, local training, aggregation and evaluation (PyTorch)."""
