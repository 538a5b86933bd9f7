"""Where and how work is done: what a call's `run=` says, what every engine can do, and the engine that does it here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from lcprune.errors import ConfigError
from lcprune.evaluate import Evaluation, Evaluator, make_evaluator
from lcprune.files import on_this_machine
from lcprune.progress import Progress
from lcprune.repairs.quick import QuickRepair
from lcprune.search.config import Search

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Shared:
    """Something that many tasks read; a cluster sends it to each machine once."""

    value: Any

    def get(self) -> Any:
        """The thing itself, wherever this is called."""
        return self.value


class Engine:
    """Judges candidates and runs tasks; used as a context manager. All in this process, unless a subclass knows more.

    Attributes:
        name: what users call it.
        workers: how many judge candidates at the same time.
    """

    name = "local"
    workers = 1

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        return None

    def settle(self, search: Search) -> Search:
        """The search with its number of candidates asked for together: that of the workers, unless it says another."""
        return replace(search, together=search.together or self.workers)

    def evaluator(
        self, graph: ChannelGraph, samples: Sequence[tuple[Any, Any]], how: Evaluation, quick: QuickRepair | None = None
    ) -> Evaluator:
        """What judges the candidates of a search; arguments as for `make_evaluator`."""
        return make_evaluator(graph, samples, how, quick)

    def share(self, value: Any) -> Shared:
        """Make something large available to tasks: pass what comes back, and call its `get()` there."""
        return Shared(value)

    def map(
        self,
        task: Callable[[Item], Any],
        items: Sequence[Item],
        *,
        names: Sequence[str] | None = None,
        gpus: float | None = None,
        title: str = "tasks",
        progress: bool = False,
    ) -> Iterator[tuple[int, Any]]:
        """Run `task(item)` for every item and yield (position of the item, result) as they finish.

        One function and its items are all that a benchmark needs to use a cluster:

            with make_engine("ray", address="auto") as engine:
                data = engine.share(dataset)                     # sent once per machine
                cells = [(data, recipe, seed) for recipe in recipes for seed in range(3)]
                for index, row in engine.map(train_cell, cells, gpus=0.25, progress=True):
                    rows[index] = row                            # write it down: finished cells are not lost

        `make_engine("local")` runs the same cells one after another. A task whose process or machine dies is run again
        from its beginning, elsewhere, three times at most: let it write checkpoints to a place that every machine sees
        and go on from them. An exception that it raises is raised here. Whatever lcprune logs inside a task appears in
        this process's log with the task's name and machine.

        Args:
            task: a function; it and the items travel to other processes. On a GPU it finds its device as `cuda`.
            items: its arguments, one per task.
            names: what to call the tasks in logs; their positions if None.
            gpus: share of a GPU that each task holds, e.g. 0.25 for four tasks on one; None divides them among the
                engine's workers. Where there are none, tasks run on cores.
            title: of the progress bar.
            progress: show it.
        """
        with Progress(title, total=len(items), enabled=progress) as bar:
            for index, item in enumerate(items):
                result = task(item)
                bar.advance()
                yield index, result


class LocalEngine(Engine):
    """This process alone."""


def make_engine(engine: str | Engine | None = None, address: str | None = None, workers: int | None = None) -> Engine:
    """The engine of that name.

    Args:
        engine: "local" (or None), "ray", or an engine, which is given back as it is.
        address: of the Ray cluster, e.g. "auto" or "10.0.0.1:6379".
        workers: how many judge candidates at the same time; as many as there are GPUs, or else cores, if None.

    Raises:
        ConfigError: there is no such engine, or it has no workers to choose.
        MissingDependencyError: Ray is not installed.
    """
    from lcprune.engine.cluster import RayEngine

    if isinstance(engine, Engine):
        return engine
    if engine == "ray":
        return RayEngine(address, workers)
    if engine not in (None, "local"):
        raise ConfigError(f"there is no engine {engine!r}: choose one of local, ray")
    if address is not None or (workers or 1) != 1:
        given = f"address={address!r}" if address is not None else f"workers={workers}"
        raise ConfigError(f'{given} needs engine="ray": the local engine is this process alone')
    return LocalEngine()


@dataclass(frozen=True, eq=False)
class Job:
    """What `run=` of `prune`, `prune_in_steps` and `pareto` can say; a folder alone means `Job(folder)`.

    Attributes:
        folder: for the network, the search's records, what was measured, and each round of Algorithm 1; None keeps
            nothing.
        resume: go on from what is in the folder.
        engine: "local", "ray" (candidates are judged on every GPU or core of the cluster, or of this machine), or
            one from `lcprune.engine`.
        networks: the networks are saved in the folder, too; every command takes them.
    """

    folder: str | os.PathLike[str] | None = None
    resume: bool = False
    engine: str | Engine = "local"
    networks: bool = True

    def __post_init__(self) -> None:
        if self.folder is not None:
            on_this_machine(self.folder)

    @classmethod
    def of(cls, run: Job | str | os.PathLike[str] | None) -> Job:
        """What `run=` means."""
        return run if isinstance(run, cls) else cls(run)  # type: ignore[arg-type]
