"""What `own_tasks.py` imports from beside it."""

from torch import nn


def block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())


def block_1d(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv1d(inputs, outputs, 9, stride=4), nn.BatchNorm1d(outputs), nn.ReLU())
