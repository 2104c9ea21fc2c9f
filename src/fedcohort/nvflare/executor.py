"""The client's end: an NVFlare Executor that answers what the server's selector asks."""

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from fedcohort.adapters.kept_answers import Answers
from fedcohort.adapters.torch_answers import (
    agreement_of,
    loss_of,
    profile_of,
    promise_on,
    samples_in,
)
from fedcohort.nvflare.messages import LOSS_TASK, PROFILE_TASK, Params, introduction, wanted
from fedcohort.privacy import promised
from fedcohort.references import load_reference
from fedcohort.selection import Need

log = logging.getLogger("fedcohort.nvflare")


class QueryExecutor(Executor):  # type: ignore[misc]
    """Answers the selector's questions; derive from it and write what it is to answer.

    Register it for `fedcohort.nvflare.QUERY_TASKS` beside the executor that trains. Of the methods
    below, `size` must be written, the others as far as the client agrees to answer.

    Examples
    --------
    >>> class Answers(QueryExecutor):
    ...     def size(self, fl_ctx):
    ...         return 120
    """

    def size(self, fl_ctx: FLContext) -> int:
        """Return how many samples this client holds."""
        raise NotImplementedError

    def profile(self, params: Params, fl_ctx: FLContext) -> ArrayLike:
        """Return the client's profile [Q], with the model it is asked to measure it with."""
        raise NotImplementedError

    def loss(self, params: Params, fl_ctx: FLContext) -> float:
        """Return the mean loss of the model `params` on the client's data."""
        raise NotImplementedError

    def label_counts(self, fl_ctx: FLContext) -> ArrayLike:
        """Return the samples of each class [N]; write it only if they may be revealed."""
        raise NotImplementedError

    def agreement(self, params: Params, fl_ctx: FLContext) -> float | None:  # noqa: ARG002
        """Return how far the gradients of the client's samples agree, for the server's advice.

        It goes with the profile (see `fedcohort.profiles.agreement`), if the client has one.
        """
        return None

    def tags(self, fl_ctx: FLContext) -> Iterable[str]:  # noqa: ARG002
        """Return words that `fedcohort.selection.only` and `always` can name this client by."""
        return ()

    def execute(
        self,
        task_name: str,
        shareable: Shareable,
        fl_ctx: FLContext,
        abort_signal: Signal,  # noqa: ARG002
    ) -> Shareable:
        """Answer one question."""
        request = FLModelUtils.from_shareable(shareable)
        params = request.params or {}
        try:
            if task_name == PROFILE_TASK:
                sent = self._vectors(request, fl_ctx)
                agreed = self.agreement(params, fl_ctx) if Need.PROFILE in sent else None
                reply = introduction(self.size(fl_ctx), sent, self.tags(fl_ctx), agreed)
            elif task_name == LOSS_TASK:
                loss = float(self.loss(params, fl_ctx))
                reply = FLModel(
                    params_type=ParamsType.FULL, params={}, metrics={Need.LOSS.value: loss}
                )
            else:
                return make_reply(ReturnCode.TASK_UNKNOWN)
        except NotImplementedError:
            log.warning("The server asks what this client does not answer: %s.", task_name)
            return make_reply(ReturnCode.TASK_UNSUPPORTED)
        return FLModelUtils.to_shareable(reply)

    def _vectors(self, request: FLModel, fl_ctx: FLContext) -> dict[Need, NDArray[Any]]:
        asked = wanted(request)
        found: dict[Need, NDArray[Any]] = {}
        if Need.PROFILE in asked:
            vector = np.asarray(self.profile(request.params or {}, fl_ctx))
            found[Need.PROFILE] = vector.astype(np.float32)
        if Need.LABEL_COUNTS in asked:
            found[Need.LABEL_COUNTS] = np.asarray(self.label_counts(fl_ctx), np.float32)
        return found


class TorchQueryExecutor(QueryExecutor):
    """Answers with a PyTorch model and the data it trains with.

    Parameters
    ----------
    load : str
        ``"module:function"`` or ``"file.py:function"``; ``function(site_name)`` returns the model
        (its weights are replaced by the server's) and the training batches, pairs ``(x, y)``.
    layer : str, optional
        The layer whose mean output is the profile; the first fully connected one if not given.
    epsilon, delta : float
        What the profile promises (see `fedcohort.privacy.Promise`); without an ε it leaves the
        client as it is. The noised answer is kept on the client's disk.
    protects : {"sample", "client"}
        Whom it is promised to: each of the client's samples, or the client as a whole, at a price
        that no selector here can bear (see docs/privacy.md).
    most_answers : int, optional
        Private profiles for different models that may leave the client.
    losses : bool, optional
        Whether exact losses are answered; by default only where no ε is promised.

    Examples
    --------
    >>> answers = TorchQueryExecutor("train.py:load", epsilon=8)
    """

    def __init__(
        self,
        load: str,
        layer: str | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        protects: str = "sample",
        most_answers: int | None = None,
        losses: bool | None = None,
    ) -> None:
        super().__init__()
        self.load = load
        self.layer = layer
        self.epsilon = epsilon
        self.delta = delta
        self.protects = protects
        self.most_answers = most_answers
        self.losses = losses
        self._promise = promised(epsilon, delta, protects)

    def size(self, fl_ctx: FLContext) -> int:
        """Return how many samples the batches hold."""
        return samples_in(self._loaded({}, fl_ctx)[1])

    def profile(self, params: Params, fl_ctx: FLContext) -> ArrayLike:
        """Return the mean output of the layer, noised once if there is a promise."""

        def draw() -> NDArray[np.float32]:
            return profile_of(*self._loaded(params, fl_ctx), self._promise, self.layer)

        if self._promise is None:
            return draw()
        site, model = fl_ctx.get_identity_name(), {n: np.asarray(v) for n, v in params.items()}
        answers, words = Answers.at(None, log), promise_on(self._promise, self.layer)
        return answers.once(site, model, words, draw, most=self.most_answers)

    def agreement(self, params: Params, fl_ctx: FLContext) -> float | None:
        """Return how far the gradients of cross-entropy agree, unless the profile is private."""
        if self._promise is not None:
            return None
        return agreement_of(*self._loaded(params, fl_ctx), None, log)

    def loss(self, params: Params, fl_ctx: FLContext) -> float:
        """Return the mean cross-entropy, unless only profiles are answered."""
        if not (self._promise is None if self.losses is None else self.losses):
            raise NotImplementedError
        return loss_of(*self._loaded(params, fl_ctx), None)

    def _loaded(self, params: Params, fl_ctx: FLContext) -> tuple[Any, Any]:
        import torch

        model, batches = load_reference(self.load, "data loader")(fl_ctx.get_identity_name())
        if params:
            model.load_state_dict({n: torch.as_tensor(v) for n, v in params.items()})
        model.eval()
        return model, batches
