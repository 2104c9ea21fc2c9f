"""Elementary symmetric polynomials in the log domain.

e_l(λ_1..λ_n) is the sum of the products of all l-subsets: the normaliser of a k-DPP, and what
decides which eigenvectors a draw uses (Kulesza and Taskar, "Determinantal Point Processes for
Machine Learning", 2012, section 5.2). In plain floats it overflows without an error from about
3000 eigenvalues and degree 170; its logarithm does neither.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def log_elementary(log_values: Floats, degree: int) -> Floats:
    """Return log e_l(λ_1..λ_j) for all l up to `degree` and all j, from log λ [r].

    Entry (l, j) of the table [degree + 1, r + 1] is −inf where l > j; every row is non-decreasing.
    """
    table = np.full((degree + 1, log_values.size + 1), -np.inf)
    table[0] = 0.0
    for l in range(1, degree + 1):  # noqa: E741
        # e_l(1..j) = e_l(1..j−1) + λ_j e_{l−1}(1..j−1): a running sum over j.
        np.logaddexp.accumulate(log_values[l - 1 :] + table[l - 1, l - 1 : -1], out=table[l, l:])
    return table


def choice_probabilities(log_values: Floats, table: Floats) -> Floats:
    """Return the probability that each eigenvector belongs to the k that a draw uses: [r].

    It is λ_j e_{k−1}(λ without λ_j) / e_k(λ). Dividing λ_j out of the full polynomial is unstable;
    a table from the left (`table`, `log_elementary` of the same values up to k) and one from the
    right are multiplied instead, which only adds positive terms.
    """
    k = table.shape[0] - 1
    right = log_elementary(log_values[::-1], k - 1)[:, ::-1]
    terms = table[:k, :-1] + right[::-1, 1:]
    result: Floats = np.exp(log_values + np.logaddexp.reduce(terms, axis=0) - table[k, -1])
    return result
