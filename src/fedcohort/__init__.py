"""fedcohort: which clients train in each round of federated learning.

The selectors and the k-DPP need NumPy and SciPy only; the simulator (`fedcohort.simulation`) needs
PyTorch and is imported by name.
"""

from fedcohort.selection import list_selectors, make_selector

__version__ = "0.1.0"

__all__ = ["__version__", "list_selectors", "make_selector"]
