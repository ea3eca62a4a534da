"""Models outside the simulator's families, for export_graph.py: a small residual network and a small recommender.

Each factory returns a module and the positional inputs of one micro-batch; called under fake tensors, nothing is computed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around a skip."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        changes = stride != 1 or width != out
        self.skip = nn.Conv2d(width, out, 1, stride, bias=False) if changes else nn.Identity()
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(inner + self.skip(x))


class ResidualNetwork(nn.Module):
    """Four stages of two blocks, as ResNet-18."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
        self.blocks = nn.ModuleList(ResidualBlock(*width) for width in widths)
        self.head = nn.Linear(512, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


class Recommender(nn.Module):
    """DLRM: tables for categories, a perceptron for numbers, dot products between all of them."""

    def __init__(self, rows: int = 100_000, tables: int = 8, width: int = 64, dense: int = 13) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        numbers = self.bottom(dense)
        rows = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        stacked = torch.stack([numbers, *rows], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        return self.top(torch.cat([numbers, products[:, self.pairs[0], self.pairs[1]]], dim=1))


def resnet() -> tuple[nn.Module, tuple[Any, ...]]:
    """ResNet-18 on 32 images of 224 x 224."""
    return ResidualNetwork(), (torch.empty(32, 3, 224, 224),)


def dlrm() -> tuple[nn.Module, tuple[Any, ...]]:
    """A recommender on 2,048 rows."""
    return Recommender(), (torch.empty(2048, 13), torch.zeros(2048, 8, dtype=torch.int64))
