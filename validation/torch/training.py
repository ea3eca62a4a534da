"""One training step, the same for traces and for measurements."""

from __future__ import annotations

from typing import Callable

import torch
from torch import nn
from torch.nn import functional as F

from run_file import Run
from sharding import accumulation, clip_gradients

Observer = Callable[[str, int], None]


def ignore(_moment: str, _micro_batch: int) -> None:
    """An observer that looks at nothing."""


def make_batches(run: Run, device: torch.device) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Tokens and labels of every micro-batch of a step."""
    shape = (run.micro_batch, run.sequence_length)
    return [
        (
            torch.zeros(shape, dtype=torch.int64, device=device),
            torch.zeros(shape, dtype=torch.int64, device=device),
        )
        for _ in range(run.micro_batches)
    ]


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    run: Run,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    observe: Observer = ignore,
) -> None:
    """Forward and backward of every micro-batch, then clipping and the update.

    `observe` is called with "forward", "backward" and "optimizer" when each begins and with "end" after the step; for the first three
    with the micro-batch.
    """
    for index, (tokens, labels) in enumerate(batches):
        observe("forward", index)
        with accumulation(model, run, index + 1 == len(batches)):
            # One expression: a name for the logits would keep them until the loss is there.
            loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), labels.flatten(0, 1))
            observe("backward", index)
            loss.backward()
            del loss
    observe("optimizer", len(batches) - 1)
    clip_gradients(model, run)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    observe("end", len(batches) - 1)
