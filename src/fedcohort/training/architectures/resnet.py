"""Residual networks for small images.

K. He, X. Zhang, S. Ren, J. Sun: Deep Residual Learning for Image Recognition. CVPR 2016: the stem
for 32×32 images of its section 4.2, without the pool that follows the stem for larger ones.
"""

from collections.abc import Sequence

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "group":
        # As Y. Wu and K. He (Group Normalization, ECCV 2018) have it, but for narrow layers.
        return nn.GroupNorm(min(32, channels // 4), channels)
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    raise ValueError(f"norm must be group or batch, not {kind!r}")


class _Block(nn.Module):
    """Two 3×3 convolutions, and the input added to what comes of them."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            down = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(down, _norm(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network whose stages double the channels and halve the sides.

    Parameters
    ----------
    input_shape : (int, int, int)
        Channels, height and width of an image.
    classes : int
        Outputs.
    blocks : sequence of int
        Blocks of each stage.
    width : int
        Channels of the first stage.
    norm : {"group", "batch"}
        What normalises; group normalisation has no statistics that clients would have to share.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        *,
        blocks: Sequence[int],
        width: int,
        norm: str = "group",
    ) -> None:
        super().__init__()
        channels, _, _ = input_shape
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = _norm(norm, width)
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            outputs = width * 2**stage
            for place in range(count):
                stride = 2 if stage and not place else 1
                stages.append(_Block(inputs, outputs, stride, norm))
                inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, channels, H, W]."""
        x = self.stages(F.relu(self.norm(self.stem(x))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def resnet8(input_shape: tuple[int, ...], classes: int, norm: str = "group") -> ResNet:
    """Three stages of one block, 16 to 64 channels."""
    return ResNet(input_shape, classes, blocks=(1, 1, 1), width=16, norm=norm)


def resnet18(input_shape: tuple[int, ...], classes: int, norm: str = "group") -> ResNet:
    """Four stages of two blocks, 64 to 512 channels."""
    return ResNet(input_shape, classes, blocks=(2, 2, 2, 2), width=64, norm=norm)
