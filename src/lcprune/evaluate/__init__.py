"""The loss of a selection, fast: what the search spends its time on.

evaluator = make_evaluator(graph, samples, Evaluation())
evaluator.loss(kept)      # the loss of the physically pruned and repaired network, however it is computed
"""

from lcprune.evaluate.evaluation import CUT, DISTANCE, DIVERGENCE, REPAIR, Evaluation
from lcprune.evaluate.evaluator import Evaluator
from lcprune.evaluate.make import make_evaluator
from lcprune.evaluate.prepare import measured, parted
from lcprune.evaluate.slicing import SlicingEvaluator
from lcprune.evaluate.unlabelled import FromWhole, answered
from lcprune.evaluate.zeroing import ZeroingEvaluator

__all__ = [
    "CUT",
    "DISTANCE",
    "DIVERGENCE",
    "REPAIR",
    "Evaluation",
    "Evaluator",
    "FromWhole",
    "SlicingEvaluator",
    "ZeroingEvaluator",
    "answered",
    "make_evaluator",
    "measured",
    "parted",
]
