"""Random crops and flips of images, from keys."""

import dataclasses

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedcohort.training.keyed import uniform

# Purposes of draws, apart from those of dropout, which count up from 1.
_ROWS, _COLUMNS, _FLIPS = -1, -2, -3


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What is done to every image before it is trained on.

    Attributes
    ----------
    crop : int
        Zeros on each side of which a random window of the image's size is taken; 0 is no crop.
    flip : bool
        Whether half of the images are mirrored, left to right.
    """

    crop: int = 0
    flip: bool = False

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        """Return a batch of images [B, C, H, W] augmented by the key of a client and step."""
        samples, _, height, width = x.shape
        if self.crop:
            room = 2 * self.crop + 1
            down, along = (
                (uniform(key, purpose, (samples,)) * room).long() for purpose in (_ROWS, _COLUMNS)
            )
            padded = F.pad(x, [self.crop] * 4)
            rows = down[:, None] + torch.arange(height, device=x.device)
            columns = along[:, None] + torch.arange(width, device=x.device)
            x = padded.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, padded.shape[3]))
            x = x.gather(3, columns[:, None, None, :].expand(-1, x.shape[1], height, -1))
        if self.flip:
            mirrored = uniform(key, _FLIPS, (samples,)) < 0.5
            x = torch.where(mirrored[:, None, None, None], x.flip(3), x)
        return x


def read_augmentation(text: str) -> Augmentation | None:
    """Read ``none``, ``flip``, ``crop:4`` or ``crop:4,flip``, which the run's setting checked."""
    words = dict(word.partition(":")[::2] for word in text.split(","))
    if "none" in words:
        return None
    return Augmentation(int(words.get("crop", 0)), "flip" in words)
