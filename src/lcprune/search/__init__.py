"""Proposing compensations and keeping track of them.

sampler = make_sampler(Space.of(scores), Search(), seed=0)
beta = sampler.ask()
sampler.tell(beta, loss)
"""

from lcprune.search.config import Search
from lcprune.search.make import make_sampler
from lcprune.search.records import Record, Records, read_records
from lcprune.search.run import Found, objective, run_search
from lcprune.search.samplers import RandomSearch, RegularizedEvolution, Sampler
from lcprune.search.space import Space

__all__ = [
    "Found",
    "RandomSearch",
    "Record",
    "Records",
    "RegularizedEvolution",
    "Sampler",
    "Search",
    "Space",
    "make_sampler",
    "objective",
    "read_records",
    "run_search",
]
