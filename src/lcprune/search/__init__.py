"""Proposing compensations and keeping track of them.

sampler = make_sampler(Space.of(scores), Search(), seed=0)
beta = sampler.ask()
sampler.tell(beta, loss)
"""

from lcprune.search.config import CANDIDATES, Search
from lcprune.search.records import Record, SearchRecords, best_of, read_records
from lcprune.search.run import Found, Judged, objective, run_search
from lcprune.search.samplers import RegularizedEvolution, Sampler, make_sampler
from lcprune.search.space import LossGuide, Space

__all__ = [
    "CANDIDATES",
    "Found",
    "Judged",
    "LossGuide",
    "Record",
    "RegularizedEvolution",
    "Sampler",
    "Search",
    "SearchRecords",
    "Space",
    "best_of",
    "make_sampler",
    "objective",
    "read_records",
    "run_search",
]
