"""Scores, a cost, a limit and a floor in; which units stay out. Numbers only: no models, no data.

ranking = Ranking(scores, graph.cost, min_keep=0.10)
kept = ranking.select(Limits(macs=0.5))               # naive: the plain global ranking
kept = ranking.select(Limits(macs=0.5), beta=beta)    # layer-compensated
kept = ranking.uniform(Limits(macs=0.5))
kept = ranking.schedule({"layer1.*": 0.5, "layer2.0.conv1": 0.25})
"""

from lcprune.select.limits import Bound, Extra, Limits
from lcprune.select.ranking import Kept, Ranking

__all__ = ["Bound", "Extra", "Kept", "Limits", "Ranking"]
