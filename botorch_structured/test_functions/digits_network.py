"""A small convolutional network on scikit-learn's digits, trained from a seed."""

from __future__ import annotations

__all__ = ["DigitsNetwork"]

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_TRAINING_IMAGES = 200
_EPOCHS, _BATCH, _RATE, _MOMENTUM = 30, 32, 0.02, 0.9
_KERNEL, _CLASSES, _PIXELS = 3, 10, 8


class DigitsNetwork:
    """Splits the 1,797 images into 200 and the rest, and trains networks on the former.

    Two convolutions of 3 x 3 with n and 2 n channels, each followed by ReLU and 2 x 2
    max pooling, a layer of n^2 / 2 ReLU units, and softmax: the network of Wang and
    Welch (2017), section 4.3, with their learning rate, momentum and number of epochs.
    (Their decay of 1e-6 changes nothing in 210 steps.) Single precision.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, seed: int) -> None:
        """
        Args:
            images: ``n x 64`` grey levels from 0 to 16, as scikit-learn has them.
            labels: ``n`` digits.
            seed: Decides the split, the first weights and the order of the images.
        """
        self.seed = seed
        order = torch.randperm(len(labels), generator=self._generator(0))
        pixels = torch.as_tensor(images / 16.0, dtype=torch.float)
        self._images = pixels.reshape(-1, 1, _PIXELS, _PIXELS)[order]
        self._labels = torch.as_tensor(labels)[order]

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(2 * self.seed + stream)

    def cross_entropies(self, l1: float, l2: float, width: int) -> tuple[float, float]:
        """On the training images and on the others, without the penalties.

        Args:
            l1: Factor of the sum of the weights' absolute values, added to the loss.
            l2: Factor of the sum of their squares.
            width: n above, at least 1.
        """
        g = self._generator(1)
        n, m = width, _TRAINING_IMAGES
        flat = 2 * n * (_PIXELS // 4) ** 2
        shapes = [(n, 1, _KERNEL, _KERNEL), (2 * n, n, _KERNEL, _KERNEL)]
        hidden = max(1, round(n * n / 2))
        weights = [_initial(*s, g=g) for s in (*shapes, (hidden, flat))]
        weights.append(_initial(_CLASSES, hidden, g=g))
        biases = [torch.zeros(len(w), requires_grad=True) for w in weights]
        optimizer = torch.optim.SGD([*weights, *biases], lr=_RATE, momentum=_MOMENTUM)
        images, labels = self._images, self._labels
        with torch.enable_grad():
            for _ in range(_EPOCHS):
                for rows in torch.randperm(m, generator=g).split(_BATCH):
                    logits = _forward(images[rows], weights, biases)
                    loss = F.cross_entropy(logits, labels[rows])
                    for w in weights:
                        loss = loss + l1 * w.abs().sum() + l2 * w.square().sum()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        with torch.no_grad():
            logits = _forward(images, weights, biases)
            training = F.cross_entropy(logits[:m], labels[:m])
            validation = F.cross_entropy(logits[m:], labels[m:])
        return training.item(), validation.item()


def _initial(*shape: int, g: torch.Generator) -> Tensor:
    """He's initial weights."""
    scale = math.sqrt(2.0 / math.prod(shape[1:]))
    return (scale * torch.randn(*shape, generator=g)).requires_grad_(True)


def _forward(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    for w, b in zip(weights[:2], biases[:2], strict=True):
        x = F.max_pool2d(F.conv2d(x, w, b, padding=1).relu(), 2)
    x = F.linear(x.flatten(1), weights[2], biases[2]).relu()
    return F.linear(x, weights[3], biases[3])
