"""Any model that maps samples one by one, on an NVIDIA GPU: clients side by side in one CUDA graph.

Each of a few slots trains one client after the other, and a slot whose client is done takes the
next one: cost follows the number of samples. The step of all slots is compiled and recorded as one
CUDA graph: small models as one program (`vmap`, with convolutions of our own), others each on a
stream of its own.
"""

import functools

from fedcohort.training.batched import measure_batched
from fedcohort.training.modules import named_state
from fedcohort.training.problem import LocalProblem
from fedcohort.training.trainer import Trainer

ANY_MODEL = True


def trainer(problem: LocalProblem, precision: str) -> Trainer | None:
    """Train SGD in batches of models without BatchNorm, dropout or frozen parameters, on a GPU.

    What is multiplied is of `precision` (float32 as TF32).
    """
    if not _can(problem):
        return None
    # Imported only where it is used: CPUs have no use for it.
    from fedcohort.training.accelerators.cuda_graphs.models import STREAMS, GraphedModels

    graphed = GraphedModels(problem.model, precision, problem.traits.channels_last)
    measure = functools.partial(measure_batched, dtype=graphed.dtype)
    return Trainer("CUDA graphs", graphed.train, graphed.evaluate, measure, at_once=STREAMS)


def _can(problem: LocalProblem) -> bool:
    work, traits = problem.work, problem.traits
    # Batches are filled up with samples that do not count, which BatchNorm would count.
    if problem.device.type != "cuda" or traits.draws or traits.mixes:
        return False
    if work.optimizer != "sgd" or work.batch_size is None:
        return False
    parameters = dict(problem.model.named_parameters())
    whole = all(p.requires_grad for p in parameters.values())
    return whole and parameters.keys() == dict(named_state(problem.model)).keys()
