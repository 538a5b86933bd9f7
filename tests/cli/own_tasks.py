"""Four small tasks, as a user would write them down: networks, data that can be learned in a second, losses, scores."""

from __future__ import annotations

import torch
from own_blocks import block, block_1d
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import lcprune


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.bottom, self.side = block(1, 8), block(8, 16), block(16, 8)
        self.up, self.head = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(8, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        high = self.down(image)
        low = self.up(self.bottom(functional.max_pool2d(high, 2)))
        return self.head(self.side(torch.cat([high, low], 1)))


def masks() -> dict[str, object]:
    """Noise with a bright rectangle; its mask is the target."""
    generator = torch.Generator().manual_seed(0)
    corner, image = torch.randint(0, 8, (96, 2), generator=generator), torch.randn(96, 1, 16, 16, generator=generator)
    line = torch.arange(16)
    rows, columns = ((line >= side[:, None]) & (line < side[:, None] + 8) for side in corner.T)
    mask = (rows[:, :, None] & columns[:, None, :]).long()
    image = 0.3 * image + mask[:, None]
    return {"train": (image[:64], mask[:64]), "test": (image[64:], mask[64:]), "score": MeanIoU}


class MeanIoU:
    """Adds up over the whole split, as a mean over batches would be something else."""

    name, percent = "mIoU", True

    def __init__(self) -> None:
        self.both, self.any = torch.zeros(2), torch.zeros(2)

    def update(self, output: Tensor, target: Tensor) -> None:
        found, wanted = (functional.one_hot(x, 2).bool() for x in (output.argmax(1), target))
        self.both += (found & wanted).sum((0, 1, 2))
        self.any += (found | wanted).sum((0, 1, 2))

    def compute(self) -> Tensor:
        return (self.both / self.any).mean()


def audio_net() -> nn.Module:
    return nn.Sequential(block_1d(1, 8), block_1d(8, 16), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 3))


def sounds() -> object:
    """One of three tones in noise, as torch data sets; an object in place of a dict."""
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, 3, (120,), generator=generator)
    wave = torch.sin(torch.arange(128) * torch.tensor([0.2, 0.6, 1.4])[label][:, None])
    wave = (wave + 0.3 * torch.randn(wave.shape, generator=generator))[:, None]

    class Parts:
        train, test = TensorDataset(wave[:90], label[:90]), TensorDataset(wave[90:], label[90:])

    return Parts()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.see, self.kind, self.mix = block(3, 16), nn.Embedding(4, 16), nn.Linear(16, 12)
        self.what, self.size = nn.Linear(12, 3), nn.Linear(12, 1)

    def forward(self, image: Tensor, kind: Tensor) -> dict[str, Tensor]:
        mixed = self.mix(self.see(image).mean((2, 3)) + self.kind(kind)).relu()
        return {"what": self.what(mixed), "size": self.size(mixed).flatten()}


def pairs() -> dict[str, object]:
    """Dicts of an image and a number, in loaders of their own."""
    generator = torch.Generator().manual_seed(0)
    image, kind = torch.randn(80, 3, 8, 8, generator=generator), torch.randint(0, 4, (80,), generator=generator)
    target = {"what": image.mean((2, 3)).argmax(1), "size": kind.float()}
    samples = [
        ({"image": image[i], "kind": kind[i]}, {name: value[i] for name, value in target.items()}) for i in range(80)
    ]
    return {
        "train": DataLoader(samples[:48], batch_size=16, shuffle=True),
        "val": DataLoader(samples[48:64], batch_size=16),
        "test": DataLoader(samples[64:], batch_size=12),
    }


def both(output: dict[str, Tensor], target: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(output["what"], target["what"]) + functional.mse_loss(
        output["size"], target["size"]
    )


def regression_net() -> nn.Module:
    return nn.Sequential(block(1, 8), block(8, 8), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 1))


def numbers() -> dict[str, object]:
    """Batches in lists; how bright the upper half is."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(96, 1, 8, 8, generator=generator)
    batches = list(zip(image.split(16), image[:, :, :4].mean((2, 3)).split(16), strict=True))
    return {"train": batches[:4], "val": batches[4:5], "test": batches[5:]}


def squares(output: Tensor, target: Tensor) -> Tensor:
    return functional.mse_loss(output, target)


absolute = lcprune.Score(lambda output, target: (output - target).abs().mean(), "MAE", better="lower")
