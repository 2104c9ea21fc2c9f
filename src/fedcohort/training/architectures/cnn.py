"""Convolutional networks that are plain chains of layers."""

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


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


class CifarCNN(nn.Module):
    """For 32×32 colour images: conv 5×5 (32), pool, conv 5×5 (64), pool, FC 512, FC classes.

    The layout of B. McMahan et al., Communication-Efficient Learning of Deep Networks from
    Decentralized Data, AISTATS 2017, as most comparisons of federated methods use it.
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * (height // 4) * (width // 4), 512)
        self.fc2 = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, channels, H, W]."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))  # type: ignore[no-any-return]
