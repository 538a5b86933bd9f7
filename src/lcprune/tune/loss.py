"""What training minimises: cross entropy, smoothed and drawn towards a teacher as the recipe says.

Distillation after Hinton et al., https://arxiv.org/abs/1503.02531: the squared temperature keeps the size of the
gradients when the temperature changes.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from lcprune.tune.recipe import Recipe


def training_loss(logits: Tensor, labels: Tensor, recipe: Recipe, teacher_logits: Tensor | None = None) -> Tensor:
    """The loss of one batch, float32, from (B, classes), int64 (B,) and (B, classes) of the network that teaches."""
    logits = logits.float()
    loss = functional.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing)
    if teacher_logits is None or recipe.distill == 0:
        return loss
    return _taught(loss, _distances(logits, teacher_logits, recipe).sum() / len(logits), recipe)


def member_losses(
    logits: Tensor, labels: Tensor, smoothing: Tensor, recipe: Recipe, teacher_logits: Tensor | None = None
) -> Tensor:
    """`training_loss` of each member of a fleet, float32 (members,), with a label smoothing (members,) for each.

    Members' batches lie one after another in (members * B, classes) and (members * B,).
    """
    members, logits = len(smoothing), logits.float()
    hard = functional.cross_entropy(logits, labels, reduction="none").view(members, -1).mean(1)
    even = -functional.log_softmax(logits, dim=1).mean(1).view(members, -1).mean(1)
    loss = (1 - smoothing) * hard + smoothing * even
    if teacher_logits is None or recipe.distill == 0:
        return loss
    distances = _distances(logits, teacher_logits, recipe).sum(1).view(members, -1).mean(1)
    return _taught(loss, distances, recipe)


def _distances(logits: Tensor, teacher_logits: Tensor, recipe: Recipe) -> Tensor:
    """(B, classes): terms of the distance between softened outputs."""
    ours = functional.log_softmax(logits / recipe.temperature, dim=1)
    theirs = functional.log_softmax(teacher_logits.float() / recipe.temperature, dim=1)
    return functional.kl_div(ours, theirs, reduction="none", log_target=True)


def _taught(loss: Tensor, distance: Tensor, recipe: Recipe) -> Tensor:
    return (1 - recipe.distill) * loss + recipe.distill * recipe.temperature**2 * distance
