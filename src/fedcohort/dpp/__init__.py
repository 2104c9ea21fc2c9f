"""k-DPP mathematics: kernels, exact and low-rank sampling."""

from fedcohort.dpp.kdpp import KDPP, Report
from fedcohort.dpp.kernels import similarity

__all__ = ["KDPP", "Report", "similarity"]
