"""The engine that works on a Ray cluster, or on all cores and GPUs of this machine through Ray."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lcprune.engine.base import Engine, Item, Shared
from lcprune.engine.desk import DeskFolder, open_desk, wait_for
from lcprune.engine.worker import Case, run_task
from lcprune.errors import EngineError, MissingDependencyError, first_line
from lcprune.evaluate import Evaluation
from lcprune.progress import Progress
from lcprune.repairs.quick import QuickRepair

if TYPE_CHECKING:
    from lcprune.engine.crew import Crew, CrewEvaluator
    from lcprune.graph.channel_graph import ChannelGraph

logger = logging.getLogger("lcprune")

RETRIES = 3  # of a task whose process or machine died
_SECONDS_BETWEEN_LOOKS = 1.0


class Share(NamedTuple):
    """What one worker holds."""

    cpus: int
    gpus: float


def divide(count: int, machines: Sequence[Mapping[str, float]], use_gpus: bool = True) -> Share:
    """What each of `count` workers holds, so that they all fit where that is possible; `machines` as Ray has them."""
    gpus = _total("GPU", machines)
    if use_gpus and gpus > 0:
        # A GPU is cut into equal parts; a part does not span two of them.
        return Share(1, 1.0 / max(1, math.ceil(count / gpus)))
    cores = [int(machine.get("CPU", 0.0)) for machine in machines]
    fit = (cpus for cpus in range(sum(cores) // max(count, 1), 0, -1) if sum(c // cpus for c in cores) >= count)
    return Share(next(fit, 1), 0.0)


def default_workers(machines: Sequence[Mapping[str, float]], use_gpus: bool = True) -> int:
    """One worker per GPU, or per core where there is none."""
    gpus, cores = int(_total("GPU", machines)), int(_total("CPU", machines))
    return max(1, gpus if use_gpus and gpus else cores)


def _total(kind: str, machines: Sequence[Mapping[str, float]]) -> float:
    return sum(machine.get(kind, 0.0) for machine in machines)


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
        self._crew: Crew | None = None
        self._desk: Any = None
        self._listened = 0.0

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
            has = len(machines), _total("CPU", machines), _total("GPU", machines), self.workers
            logger.info("Ray: %d machines, %g cores, %g GPUs; %d workers", *has)
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self.dismiss()
        self.listen(now=True)
        if self._desk is not None:
            with contextlib.suppress(Exception):  # a cluster that is gone takes it along
                import_ray().kill(self._desk)
            self._desk = None
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

    def part(self, count: int) -> Share:
        """What each of `count` workers holds."""
        return divide(count, self.machines(), self.gpus)

    @property
    def desk(self) -> Any:
        """Handle of the actor on this machine that takes the files and log lines of others."""
        if self._desk is None:
            self._desk = open_desk()
        return self._desk

    def folder(self, path: Path) -> DeskFolder:
        """A folder of this machine's disk that tasks can reach."""
        return DeskFolder(self.desk, path.resolve())

    def listen(self, now: bool = False) -> None:
        """Log what workers and tasks said since the last time, at most once a second unless `now`."""
        if self._desk is None or (not now and time.monotonic() - self._listened < _SECONDS_BETWEEN_LOOKS):
            return
        self._listened = time.monotonic()
        try:
            said = import_ray().get(self.desk.hear.remote())
        except Exception as error:  # the work goes on, unheard
            logger.debug("workers cannot be heard: %s", error)
            return
        for level, speaker, message in said:
            logger.log(level, "[%s] %s", speaker, message)

    def evaluator(
        self, graph: ChannelGraph, samples: Sequence[tuple[Any, Any]], how: Evaluation, quick: QuickRepair | None = None
    ) -> CrewEvaluator:
        from lcprune.engine.crew import CrewEvaluator

        _send_user_modules()
        case = Case.pack(graph, samples, how, _threads(self.part(self.workers)))
        precision = "fp32" if how.prepare else how.precision  # the user's own are judged as they are here
        return CrewEvaluator(graph, how.loss, self, import_ray().put(case), precision)

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
        part = self.part(max(1, min(len(items), self.workers)))
        gpus = part.gpus if gpus is None or not part.gpus else gpus
        function: Any = ray.remote(run_task)
        options = {"num_cpus": part.cpus, "num_gpus": gpus, "max_retries": RETRIES, "scheduling_strategy": "SPREAD"}
        labels = list(names) if names is not None else [f"task {index}" for index in range(len(items))]
        shared = ray.put(task)
        calls = {
            function.options(name=label, **options).remote(shared, item, label, self.desk, _threads(part)): index
            for index, (item, label) in enumerate(zip(items, labels, strict=True))
        }
        try:
            with Progress(title, total=len(items), enabled=progress) as bar:
                while calls:
                    done, _ = ray.wait(list(calls), timeout=1.0)
                    self.listen()
                    for call in done:
                        index = calls.pop(call)
                        result = _result(call, labels[index])
                        bar.advance(last=labels[index])
                        yield index, result
        finally:
            self.listen(now=True)
            for call in calls:  # somebody stopped early
                ray.cancel(call, force=True)

    @property
    def crew(self) -> Crew:
        """The workers that judge candidates, started when they are first needed."""
        from lcprune.engine.crew import Crew

        if self._crew is None:
            self._crew = Crew(self)
        return self._crew

    def dismiss(self) -> None:
        """End the workers that judge candidates; they come back when they are needed."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None


def import_ray() -> Any:
    """Ray; where it is not installed, an error says how to get it."""
    try:
        import ray
    except ImportError:
        raise MissingDependencyError(
            "the ray engine needs Ray, which is not installed; it comes with: pip install lcprune[ray]"
        ) from None
    return ray


def _result(call: Any, label: str) -> Any:
    from lcprune.engine.crew import own_error

    ray = import_ray()
    try:
        return ray.get(call)
    except ray.exceptions.RayTaskError as error:
        why = own_error(error)
    except ray.exceptions.RayError as error:
        line = first_line(error)
        why = EngineError(f"{label}: its process or machine died, and {RETRIES} more did after it: {line}")
    raise why


def _knock(address: str | None) -> None:
    """Find out in seconds, not minutes, that nobody is at HOST:PORT."""
    host, _, port = (address or "").rpartition(":")
    if port.isdigit() and host and "/" not in host:
        socket.create_connection((host, int(port)), timeout=10).close()


def _threads(part: Share) -> int:
    # No more than this process would use: one worker then sums in the same order as none.
    return max(1, min(part.cpus, torch.get_num_threads()))


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
