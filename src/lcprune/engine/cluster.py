"""The engine that works on a Ray cluster, or on all cores and GPUs of this machine through Ray."""

from __future__ import annotations

import logging
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from lcprune.engine.base import Engine, Item, Shared
from lcprune.engine.crew import Crew
from lcprune.engine.desk import Desk, DeskStore, wait_for
from lcprune.engine.evaluator import CrewEvaluator
from lcprune.engine.logs import LogListener
from lcprune.engine.shares import default_workers, share
from lcprune.engine.worker import Case, run_task
from lcprune.errors import EngineError, MissingDependencyError, first_line
from lcprune.evaluate import Evaluation
from lcprune.progress import Progress
from lcprune.repairs.quick import QuickRepair

if TYPE_CHECKING:
    from lcprune.graph.channel_graph import ChannelGraph

logger = logging.getLogger("lcprune")

RETRIES = 3  # of a task whose process or machine died


@dataclass(frozen=True, eq=False)
class _Reference(Shared):
    def get(self) -> Any:
        return wait_for(self.value)


class RayEngine(Engine):
    """Workers on a Ray cluster.

    It can be entered several times, one inside another; the last to leave ends the workers, and Ray itself if it was
    started here.

    Args:
        address: of the cluster, e.g. "auto" or "10.0.0.1:6379"; None takes the one that this process is connected to or
            that runs on this machine, and starts one on this machine if there is none.
        workers: how many judge candidates at the same time; None for one per GPU, or per core where there is none.
        gpus: whether GPUs are used, where there are any.

    Raises:
        MissingDependencyError: Ray is not installed.
    """

    name = "ray"

    def __init__(self, address: str | None = None, workers: int | None = None, gpus: bool = True) -> None:
        import_ray()
        self.address, self.gpus = address, gpus
        self._asked = workers
        self._depth = 0
        self._ours = False
        self._logs: LogListener | None = None
        self._crew: Crew | None = None

    def __enter__(self) -> RayEngine:
        ray = import_ray()
        if not ray.is_initialized():
            try:
                _knock(self.address)
                ray.init(self.address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            except Exception as error:
                where = f"at {self.address!r}" if self.address else "on this machine"
                raise EngineError(f"no Ray cluster could be reached or started {where}: {first_line(error)}") from error
            self._ours = True
        self._depth += 1
        if self._depth == 1:
            machines = self.machines()
            logger.info(
                "Ray: %d machines, %g cores, %g GPUs; %d workers",
                len(machines),
                sum(machine.get("CPU", 0) for machine in machines),
                sum(machine.get("GPU", 0) for machine in machines),
                self.workers,
            )
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self.dismiss()
        if self._logs is not None:
            self._logs.close()
            self._logs = None
        if self._ours:
            import_ray().shutdown()
            self._ours = False

    @property
    def workers(self) -> int:  # type: ignore[override]
        """How many judge candidates at the same time."""
        if self._asked is None:
            self._asked = default_workers(self.machines(), self.gpus)
        return self._asked

    def machines(self) -> list[Mapping[str, float]]:
        """Resources of each machine that is alive."""
        return [node["Resources"] for node in import_ray().nodes() if node["Alive"]]

    @property
    def logs(self) -> LogListener:
        """Receives the log lines of workers."""
        if self._logs is None:
            self._logs = LogListener(import_ray().get_runtime_context().get_node_id())
        return self._logs

    def evaluator(
        self, graph: ChannelGraph, samples: Sequence[tuple[Any, Any]], how: Evaluation, quick: QuickRepair | None = None
    ) -> CrewEvaluator:
        _send_user_modules()
        part = share(self.workers, self.machines(), self.gpus)
        case = Case.pack(graph, samples, how, self._threads(part.cpus))
        precision = "fp32" if how.prepare else how.precision  # the user's own are judged as they are here
        return CrewEvaluator(graph, how.loss, self._get_crew, import_ray().put(case), precision)

    def share(self, value: Any) -> Shared:
        _send_user_modules()
        return _Reference(import_ray().put(value))

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
        ray = import_ray()
        _send_user_modules()
        self.dismiss()  # tasks need the room that idle judges hold
        part = share(max(1, min(len(items), self.workers)), self.machines(), self.gpus)
        gpus = part.gpus if gpus is None or not part.gpus else gpus
        function: Any = ray.remote(run_task)
        options = {"num_cpus": part.cpus, "num_gpus": gpus, "max_retries": RETRIES, "scheduling_strategy": "SPREAD"}
        labels = list(names) if names is not None else [f"task {index}" for index in range(len(items))]
        shared = ray.put(task)
        calls = {
            function.options(name=label, **options).remote(
                shared, item, label, self.logs.queue, self._threads(part.cpus)
            ): index
            for index, (item, label) in enumerate(zip(items, labels, strict=True))
        }
        try:
            with Progress(title, total=len(items), enabled=progress) as bar:
                while calls:
                    done, _ = ray.wait(list(calls), timeout=1.0)
                    self.logs.listen()
                    for call in done:
                        index = calls.pop(call)
                        result = _result(call, labels[index])
                        bar.advance(last=labels[index])
                        yield index, result
        finally:
            self.logs.listen(now=True)
            for call in calls:  # somebody stopped early
                ray.cancel(call, force=True)

    def desk(self, folder: Path) -> DeskStore:
        """A folder of this machine's disk that tasks can reach."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ray = import_ray()
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        kind: Any = ray.remote(Desk)
        options = {"num_cpus": 0, "scheduling_strategy": here, "max_restarts": -1, "max_task_retries": -1}
        return DeskStore(kind.options(**options).remote(str(folder.resolve())))

    def dismiss(self) -> None:
        """End the workers that judge candidates; they come back when they are needed."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def _get_crew(self) -> Crew:
        if self._crew is None:
            self._crew = Crew(self.workers, share(self.workers, self.machines(), self.gpus), self.logs)
        return self._crew

    def _threads(self, cpus: int) -> int:
        # No more than this process would use: one worker then sums in the same order as none.
        return max(1, min(cpus, torch.get_num_threads()))


def import_ray() -> Any:
    """Ray; where it is not installed, an error says how to get it."""
    try:
        import ray
    except ImportError:
        raise MissingDependencyError(
            "the ray engine needs Ray, which is not installed; it comes with: pip install lcprune[ray]"
        ) from None
    return ray


def _knock(address: str | None) -> None:
    """Find out in seconds, not minutes, that nobody is at HOST:PORT."""
    host, _, port = (address or "").rpartition(":")
    if port.isdigit() and host and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _result(call: Any, label: str) -> Any:
    ray = import_ray()
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error  # which has the story of what happened there
        raise
    except ray.exceptions.RayError as error:
        line = first_line(error)
        raise EngineError(f"{label}: its process or machine died, and {RETRIES} more did after it: {line}") from None


def _send_user_modules() -> None:
    """Code of the user's own files travels with what is made of it: other machines may not have the files."""
    from ray import cloudpickle

    installed = tuple({sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")})
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        own = isinstance(module, ModuleType) and module.__name__ == name and file
        if not own or file.startswith(installed) or name.split(".")[0] in ("__main__", "lcprune"):
            continue
        if not str(Path(file).resolve()).startswith(installed):
            cloudpickle.register_pickle_by_value(module)
