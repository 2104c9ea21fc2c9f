"""Read a model as a plain chain of layers, which accelerators know how to train.

The model stays an ordinary `nn.Module`: the graph of a copy is traced, and a chain of convolutions,
ReLUs, 2×2 max pools and fully connected layers becomes a list of layers. A model that is anything
else, or does anything besides (hooks), is not a chain, and is trained as PyTorch runs it.
"""

import copy
import dataclasses
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn

from fedcohort.training.modules import alike

# The options of a 2×2 max pool, in their order, with the values that they may have.
_POOL: dict[str, tuple[Any, ...]] = {
    "kernel_size": (2,),
    "stride": (2, None),
    "padding": (0,),
    "dilation": (1,),
    "ceil_mode": (False,),
}


class NotAChainError(Exception):
    """The model is not a plain chain of known layers; the message says why."""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """A convolution of stride 1, then perhaps a ReLU and a 2×2 max pool.

    Attributes
    ----------
    weight, bias : str
        Names of the parameters; no bias is None.
    channels, height, width : int
        Of the input.
    filters : int
        Output channels.
    kernel : (int, int)
        Height and width of the kernel.
    padding : int
        Zeros on each side.
    pool : int
        Side of the pooling window: 1 (none) or 2.
    relu : bool
        Whether a ReLU follows.
    """

    weight: str
    bias: str | None
    channels: int
    height: int
    width: int
    filters: int
    kernel: tuple[int, int]
    padding: int
    pool: int = 1
    relu: bool = False

    @property
    def inputs(self) -> int:
        """Numbers per sample that come in."""
        return self.channels * self.height * self.width

    @property
    def image(self) -> tuple[int, int]:
        """Height and width of what goes out."""
        rows = self.height + 2 * self.padding - self.kernel[0] + 1
        columns = self.width + 2 * self.padding - self.kernel[1] + 1
        return rows // self.pool, columns // self.pool

    @property
    def outputs(self) -> int:
        """Numbers per sample that go out."""
        rows, columns = self.image
        return self.filters * rows * columns

    @property
    def weights(self) -> int:
        """How many weights there are."""
        return self.kernel[0] * self.kernel[1] * self.channels * self.filters

    @property
    def flops(self) -> int:
        """Floating-point operations of one sample's forward pass."""
        rows, columns = self.image
        return 2 * self.weights * rows * columns * self.pool**2


@dataclasses.dataclass(frozen=True)
class Linear:
    """A fully connected layer, then perhaps a ReLU.

    Attributes
    ----------
    weight, bias : str
        Names of the parameters; no bias is None.
    inputs, outputs : int
        Widths.
    image : (int, int, int), optional
        Channels, height and width of the image that was flattened into the input.
    relu : bool
        Whether a ReLU follows.
    """

    weight: str
    bias: str | None
    inputs: int
    outputs: int
    image: tuple[int, int, int] | None = None
    relu: bool = False

    @property
    def weights(self) -> int:
        """How many weights there are."""
        return self.inputs * self.outputs

    @property
    def flops(self) -> int:
        """Floating-point operations of one sample's forward pass."""
        return 2 * self.weights


Layer = Convolution | Linear


def find_chain(model: nn.Module, input_shape: tuple[int, ...]) -> tuple[Layer, ...] | None:
    """Return the layers of a model, or None if it is not a plain chain of known ones."""
    try:
        return read_chain(model, input_shape)
    except NotAChainError:
        return None


def read_chain(model: nn.Module, input_shape: tuple[int, ...]) -> tuple[Layer, ...]:
    """Return the layers of a model for inputs of a shape, or raise `NotAChainError`.

    They are what the model does in training and in evaluation: its outputs and gradients on a few
    samples are compared with theirs.
    """
    for name, part in model.named_modules():
        if _does_more(part):
            raise NotAChainError(f"{name or 'the model'!r} has hooks, or is called in its own way")
    # A model's own code may fail in any way where it is given symbols, or numbers of ours.
    try:
        # A copy, since what a forward pass leaves behind in a model would be symbols.
        read, judged = (_trace(copy.deepcopy(model).train(t), input_shape) for t in (True, False))
        if read != judged or not _agree(copy.deepcopy(model).cpu(), read, input_shape):
            raise NotAChainError("its forward pass does something that no layer of it does")
    except NotAChainError:
        raise
    except Exception as error:
        raise NotAChainError(f"its code cannot be traced ({error})") from error
    return read


def _does_more(part: nn.Module) -> bool:
    """Tell whether calling a module does more than its class's forward pass."""
    own_ways = type(part).__call__ is not nn.Module.__call__ or "forward" in vars(part)
    hooks = (
        *(part._forward_hooks, part._forward_pre_hooks),
        *(part._backward_hooks, part._backward_pre_hooks),
    )
    return own_ways or any(hooks)


def _trace(model: nn.Module, input_shape: tuple[int, ...]) -> tuple[Layer, ...]:
    reader = _GraphReader(model, input_shape)
    for node in fx.symbolic_trace(model).graph.nodes:
        reader.read(node)
    return reader.finish()


def _agree(model: nn.Module, layers: tuple[Layer, ...], input_shape: tuple[int, ...]) -> bool:
    """Tell whether a model and its layers give the same outputs and gradients on a few samples."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, *input_shape, generator=generator)
    own: dict[str, Tensor] = dict(model.named_parameters())
    for p in own.values():
        # Not the model's first weights: zeros would hide what is done to them.
        p.data.normal_(0, p[0].numel() ** -0.5, generator=generator)

    def gradients(outputs: Tensor) -> list[Tensor]:
        return [outputs, *torch.autograd.grad(outputs.square().sum(), list(own.values()))]

    with torch.enable_grad():
        expected = gradients(_outputs(layers, own, x))
        found = [gradients(model.train(training)(x.clone())) for training in (True, False)]
    return all(alike(a, b) for way in found for a, b in zip(way, expected, strict=True))


def _outputs(layers: tuple[Layer, ...], parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return what the layers make of inputs [B, ...]."""
    for layer in layers:
        weight, bias = parameters[layer.weight], parameters[layer.bias] if layer.bias else None
        if isinstance(layer, Convolution):
            x = F.conv2d(x, weight, bias, padding=layer.padding)
            x = F.max_pool2d(x, layer.pool)
        else:
            x = F.linear(x.flatten(1), weight, bias)
        x = F.relu(x) if layer.relu else x
    return x


class _GraphReader:
    """Follows the activations through a traced graph."""

    def __init__(self, model: nn.Module, input_shape: tuple[int, ...]) -> None:
        self._modules = dict(model.named_modules())
        self._parameters = {name for name, _ in model.named_parameters()}
        self._frozen = not all(p.requires_grad for p in model.parameters())
        self._shape = input_shape
        self._layers: list[Layer] = []
        self._here: fx.Node | None = None
        self._flattened: tuple[int, int, int] | None = None

    def read(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            if self._here is not None:
                raise NotAChainError("it takes more than one input")
            self._here = node
        elif node.op == "output":
            if node.args[0] is not self._here:
                raise NotAChainError("its output is not one tensor")
        elif node.op == "call_method" and node.target in ("size", "dim"):
            return  # Only shapes come of it, and those are known.
        elif self._here is None or not node.args or node.args[0] is not self._here:
            raise NotAChainError(f"{node.name!r} does not follow the layer before it")
        else:
            self._step(node)
            self._here = node

    def _step(self, node: fx.Node) -> None:
        if node.op == "call_module":
            module = self._modules[str(node.target)]
            name = str(node.target)
            if type(module) is nn.Conv2d:
                self._convolution(name, module)
            elif type(module) is nn.Linear:
                self._linear(name, module)
            elif type(module) is nn.ReLU:
                self._relu()
            elif type(module) is nn.MaxPool2d:
                self._pool({option: getattr(module, option) for option in _POOL})
            elif type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
                self._flatten()
            elif type(module) is not nn.Identity:
                raise NotAChainError(f"it has a {type(module).__name__} layer")
        elif node.target in (F.relu, torch.relu, "relu"):
            self._relu()
        elif node.target in (F.max_pool2d, torch.max_pool2d):
            self._pool(dict(zip(_POOL, node.args[1:], strict=False)) | node.kwargs)
        elif self._flattens(node):
            self._flatten()
        else:
            raise NotAChainError(f"it calls {node.name!r}")

    def _convolution(self, name: str, module: nn.Conv2d) -> None:
        plain = (module.stride, module.dilation, module.groups) == ((1, 1), (1, 1), 1)
        padding = module.padding
        plain = plain and module.padding_mode == "zeros"
        if not plain or isinstance(padding, str) or padding[0] != padding[1]:
            raise NotAChainError(f"{name!r} has stride, dilation, groups or a padding of its own")
        if len(self._shape) != 3:
            raise NotAChainError(f"{name!r} is given something that is not an image")
        channels, height, width = self._shape
        layer = Convolution(
            f"{name}.weight",
            None if module.bias is None else f"{name}.bias",
            channels,
            height,
            width,
            module.out_channels,
            (module.kernel_size[0], module.kernel_size[1]),
            int(padding[0]),
        )
        self._layers.append(layer)
        self._shape = (layer.filters, *layer.image)

    def _linear(self, name: str, module: nn.Linear) -> None:
        if len(self._shape) != 1:
            raise NotAChainError(f"{name!r} is applied along one side of an image")
        bias = None if module.bias is None else f"{name}.bias"
        self._layers.append(
            Linear(f"{name}.weight", bias, self._shape[0], module.out_features, self._flattened)
        )
        self._flattened = None
        self._shape = (module.out_features,)

    def _relu(self) -> None:
        if not self._layers or self._flattened is not None:
            raise NotAChainError("it has a ReLU that does not follow a layer")
        self._layers[-1] = dataclasses.replace(self._layers[-1], relu=True)

    def _pool(self, given: dict[str, Any]) -> None:
        last = self._layers[-1] if self._layers else None
        for option, (usual, *others) in _POOL.items():
            if given.get(option, usual) not in (usual, (usual, usual), [usual, usual], *others):
                raise NotAChainError("it pools with windows other than 2×2")
        if not isinstance(last, Convolution) or last.pool != 1 or len(self._shape) != 3:
            raise NotAChainError("it has a pool that does not follow a convolution")
        self._layers[-1] = pooled = dataclasses.replace(last, pool=2)
        self._shape = (pooled.filters, *pooled.image)

    def _flattens(self, node: fx.Node) -> bool:
        if node.target in (torch.flatten, "flatten"):
            return node.args[1:] == (1,)
        whole = int(torch.Size(self._shape).numel())
        shaped = node.target in ("view", "reshape") and len(node.args) == 3
        return shaped and node.args[2] in (-1, whole)

    def _flatten(self) -> None:
        if len(self._shape) == 3:
            channels, height, width = self._shape
            self._flattened = channels, height, width
        self._shape = (int(torch.Size(self._shape).numel()),)

    def finish(self) -> tuple[Layer, ...]:
        used = [name for layer in self._layers for name in (layer.weight, layer.bias) if name]
        if not self._layers or not isinstance(self._layers[-1], Linear):
            raise NotAChainError("it does not end in a fully connected layer")
        if self._layers[-1].relu:
            raise NotAChainError("its outputs pass a ReLU")
        if self._frozen:
            raise NotAChainError("some of its parameters are frozen")
        if sorted(used) != sorted(self._parameters):
            raise NotAChainError("it has parameters outside its layers, or shares some")
        return tuple(self._layers)
