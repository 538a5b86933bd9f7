"""The loss of a selection, fast: what the search spends its time on.

samples = draw(data, images=3000, seed=0)
evaluator = make_evaluator(graph, samples, Evaluation())
evaluator.loss(kept)      # the physically pruned network's loss, however it is computed
"""

from lcprune.evaluate.draw import Batch, collate, draw, fingerprint
from lcprune.evaluate.evaluation import Evaluation
from lcprune.evaluate.evaluator import Evaluator, Work
from lcprune.evaluate.make import make_evaluator
from lcprune.evaluate.prepare import guessing_loss, renew_statistics, short_tuning, statistics_of
from lcprune.evaluate.slicing import SlicingEvaluator
from lcprune.evaluate.zeroing import ZeroingEvaluator

__all__ = [
    "Batch",
    "Evaluation",
    "Evaluator",
    "SlicingEvaluator",
    "Work",
    "ZeroingEvaluator",
    "collate",
    "draw",
    "fingerprint",
    "guessing_loss",
    "make_evaluator",
    "renew_statistics",
    "short_tuning",
    "statistics_of",
]
