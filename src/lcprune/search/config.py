"""The settings of a search: the paper's values as defaults, departures by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lcprune.errors import SearchError, need_choice, need_whole

ALGORITHMS = ("evolution", "guided", "random")
FORMS = ("shift", "affine")
CANDIDATES = 400  # of a search, as in the paper


@dataclass(frozen=True)
class Search:
    """How layer compensations are looked for; what a candidate is judged by is an `Evaluation`.

    Attributes:
        pool: members of the first pool, and of the pool that evolution keeps.
        iterations: mutations after the first pool; `pool + iterations` candidates are judged in all. None: 400 in all,
            as in the paper, or 200 with a guide (two for each group of units, if these are more, up to 400).
        sample: members drawn from the pool (with replacement) to find a parent.
        mutate: share of the layers that one mutation changes, at least one layer.
        algorithm: "evolution" (the paper's), "random", or "guided": evolution that judges, of many mutations, the one
            that a model of all losses so far expects most of, where candidates are judged after repair, and
            "evolution" elsewhere. "guided" has no first pool.
        form: "shift" ranks by `metric + beta`; "affine" by `alpha * metric + beta`.
        patience: stop after this many candidates without improvement, counted after the first pool of evolution, or
            after what a guide begins with; None judges them all.
        finalists: candidates judged again in fp32 where others are judged in less.
        together: candidates asked for together and told in the order asked, so that a search is reproducible for a
            given number of them; None asks for as many as the engine has workers, one on a single machine.
        asynchronous: tell each candidate as soon as it is judged and ask for the next: no worker waits for another,
            and the result depends on who was faster.
    """

    pool: int = 64
    iterations: int | None = None
    sample: int = 16
    mutate: float = 0.1
    algorithm: str = "guided"
    form: str = "shift"
    patience: int | None = None
    finalists: int = 8
    together: int | None = None
    asynchronous: bool = False

    def __post_init__(self) -> None:
        for name in ("pool", "sample", "finalists"):
            need_whole(name, getattr(self, name), 1)
        for name, least in (("iterations", 0), ("patience", 1), ("together", 1)):
            if getattr(self, name) is not None:
                need_whole(name, getattr(self, name), least)
        if not 0 < self.mutate <= 1:
            raise SearchError(f"mutate={self.mutate!r} is the share of layers to change: more than 0, at most 1")
        need_choice("algorithm", self.algorithm, ALGORITHMS)
        need_choice("form", self.form, FORMS)

    @property
    def total(self) -> int:
        """Candidates judged when nothing stops the search early."""
        return max(self.pool, CANDIDATES) if self.iterations is None else self.pool + self.iterations

    def counted(self, total: int) -> Search:
        """This search, with `total` candidates if it does not say how many."""
        return self if self.iterations is not None else replace(self, iterations=max(0, total - self.pool))
