"""Small chains of layers on a CPU: local training in C, compiled on the machine that uses it.

For models so small that PyTorch's overhead per operation decides; larger convolutions are faster in
oneDNN's kernels.
"""

from fedcohort.training.accelerators.c_chain.averaging import average_compiled
from fedcohort.training.accelerators.c_chain.compiler import kernels
from fedcohort.training.accelerators.c_chain.models import CompiledModels
from fedcohort.training.layers import find_chain
from fedcohort.training.problem import LocalProblem
from fedcohort.training.trainer import Trainer

# Floating-point operations per sample, forward. Measured on two cores: at 0.1 million (digits) C is
# 7 times as fast as one client per core, at 5 million (the paper's CNN) they are level.
_LARGEST_MODEL = 2_000_000

ANY_MODEL = False


def trainer(problem: LocalProblem, precision: str) -> Trainer | None:  # noqa: ARG001
    """Train plain SGD on classes of small chains on a CPU, where there is a C compiler."""
    if problem.device.type != "cpu" or not problem.is_plain:
        return None
    layers = find_chain(problem.model, problem.input_shape)
    if layers is None or sum(layer.flops for layer in layers) > _LARGEST_MODEL or kernels() is None:
        return None
    compiled = CompiledModels(layers)
    return Trainer("C chain", compiled.train, compiled.evaluate, compiled.measure, average_compiled)
