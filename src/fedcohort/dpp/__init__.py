"""k-DPP mathematics: kernels, exact and low-rank sampling."""

from fedcohort.dpp.kdpp import KDPP, Report
from fedcohort.dpp.kernels import similarity
from fedcohort.dpp.landmarks import Landmarks, gram

__all__ = ["KDPP", "Landmarks", "Report", "gram", "similarity"]
