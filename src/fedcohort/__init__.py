"""fedcohort: which clients train in each round of federated learning."""

__version__ = "0.1.0"
