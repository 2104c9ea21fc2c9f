"""The models that clients train."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedcohort.errors import InvalidModelError, UnknownNameError
from fedcohort.references import load_reference


class PaperCNN(nn.Module):
    """Two convolutional and two fully connected layers, for 28×28 images.

    The paper gives no widths; these are those of the code its data protocol comes from (Wang et
    al., FAVOR, INFOCOM 2020): conv 5×5 (20), pool, conv 5×5 (50), pool, FC 500, FC classes.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        self.fc1 = nn.Linear(50 * rows * columns, 500)
        self.fc2 = nn.Linear(500, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, channels, H, W]."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


class SmallCNN(nn.Module):
    """The same layout for 8×8 images: conv 3×3 (8), conv 3×3 (16), pool, FC 32, FC classes."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.fc1 = nn.Linear(16 * ((height - 4) // 2) * ((width - 4) // 2), 32)
        self.fc2 = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, channels, H, W]."""
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Two fully connected layers, for data that are not images: FC 64, FC classes."""

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(int(torch.Size(input_shape).numel()), 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of inputs [B, ...]."""
        return self.fc2(F.relu(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]


Factory = Callable[[tuple[int, ...], int], nn.Module]

MODELS: dict[str, Factory] = {"cnn": PaperCNN, "cnn-small": SmallCNN, "mlp": MLP}


def build_model(name: str, input_shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """Build a model whose first weights are a function of `seed` alone.

    Parameters
    ----------
    name : str
        ``auto`` (by the shape of the inputs), ``cnn``, ``cnn-small``, ``mlp``, or
        ``module:factory`` or ``FILE.py:factory`` for your own: a callable that takes
        (input_shape, classes).
    input_shape : tuple of int
        Shape of one input, for images (channels, height, width).
    classes : int
        Number of outputs.
    seed : int
        Seed of the initial weights.
    """
    factory = _factory(_by_shape(input_shape) if name == "auto" else name)
    # Layers draw their first weights from PyTorch's global generator: lend them one of our own.
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        try:
            model = factory(input_shape, classes)
        except Exception as error:
            raise InvalidModelError(
                f"Model {name!r} cannot be built for inputs of shape {list(input_shape)}: {error}."
            ) from error
    _check_model(name, model, input_shape, classes)
    return model


def _by_shape(input_shape: tuple[int, ...]) -> str:
    if len(input_shape) != 3 or min(input_shape[1:]) < 6:
        return "mlp"
    return "cnn" if min(input_shape[1:]) >= 16 else "cnn-small"


def _factory(name: str) -> Factory:
    if name in MODELS:
        return MODELS[name]
    if ":" not in name:
        raise UnknownNameError(
            "model", name, [*MODELS, "auto", "module:factory", "FILE.py:factory"]
        )
    found = load_reference(name, "model", InvalidModelError)
    if not callable(found):
        raise InvalidModelError(f"Model {name!r} is not callable: give a factory or a class.")
    return found  # type: ignore[no-any-return]


def _check_model(name: str, model: object, input_shape: tuple[int, ...], classes: int) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidModelError(f"Model {name!r} made a {type(model).__name__}, not an nn.Module.")
    if next(model.buffers(), None) is not None:
        raise InvalidModelError(
            f"Model {name!r} has buffers (such as BatchNorm's running statistics), which have no"
            " meaning as an average over clients: use GroupNorm or LayerNorm instead."
        )
    if any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p for part in model.modules()):
        raise InvalidModelError(
            f"Model {name!r} has dropout, which draws from PyTorch's global generator and so makes"
            " runs irreproducible: set p=0."
        )
    with torch.no_grad():
        try:
            logits = model(torch.zeros(2, *input_shape))
        except RuntimeError as error:
            raise InvalidModelError(
                f"Model {name!r} does not accept inputs of shape {list(input_shape)}:"
                f" {str(error).splitlines()[0]}."
            ) from error
    if logits.shape != (2, classes):
        raise InvalidModelError(
            f"Model {name!r} gives outputs of shape {list(logits.shape[1:])} a sample, but the"
            f" data have {classes} classes."
        )
