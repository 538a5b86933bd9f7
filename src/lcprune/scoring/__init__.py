"""How much each removable unit matters: one small function per metric, in a registry that anyone can extend."""

from lcprune.scoring import gradients, rebuilt, weights  # noqa: F401  (they register themselves)
from lcprune.scoring.registry import Context, Metric, Metrics, metrics

__all__ = ["Context", "Metric", "Metrics", "metrics"]
