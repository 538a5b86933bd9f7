"""Ways to choose what goes: objects that carry their own settings, and their names."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, TypeVar

from lcprune.errors import ConfigError
from lcprune.evaluate import Evaluation
from lcprune.select import Kept
from lcprune.task import Choice, Task, plain_fields

Chooser = TypeVar("Chooser", bound=Callable[..., Any])


class Method(ABC):
    """A way to choose units; what can be set about it are the fields of a frozen dataclass.

    Attributes:
        name: what users call it.
        needs_data: whether it cannot do without.
        summary: the first line of its docstring.
    """

    name: ClassVar[str]
    needs_data: ClassVar[bool]
    summary: ClassVar[str]

    @abstractmethod
    def choose(self, task: Task) -> Choice:
        """Which units stay."""

    def reselect(self, task: Task, choice: Choice) -> Kept | None:
        """What it keeps of its choice under the tighter limits of `task`, in no time; None if it cannot say."""
        return None

    @property
    def scheduled(self) -> bool:
        """Whether the user says what stays, whatever the limits are."""
        return False

    def own_metric(self, evaluation: Evaluation) -> str:
        """What units are scored by if the user does not say.

        Args:
            evaluation: how networks are judged.
        """
        return "l2"

    def settings(self) -> dict[str, Any]:
        """The method and its settings, as plain JSON."""
        return {"method": self.name, **(plain_fields(self, self.name) if is_dataclass(self) else {})}


class Methods:
    """What `method=` of `prune` can be called: `lcprune.methods()` lists the names.

    ```python
    @lcprune.methods.register("mine")
    def mine(task):
        return lcprune.methods.Choice(task.ranking.select(task.limits))
    ```
    """

    def __init__(self) -> None:
        self.Choice, self.Method, self.Task = Choice, Method, Task  # what a method is made of
        self._known: dict[str, type[Method]] = {}

    def __call__(self) -> tuple[str, ...]:
        """Every method that can be named, sorted."""
        return self.names()

    def names(self) -> tuple[str, ...]:
        """Every method that can be named, sorted."""
        return tuple(sorted(self._known))

    def get(self, name: str) -> type[Method]:
        """The class of the method of that name.

        Raises:
            ConfigError: there is none.
        """
        if name not in self._known:
            near = difflib.get_close_matches(str(name), self.names(), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"there is no method {name!r}.{hint} There are {', '.join(self.names())}")
        return self._known[name]

    def make(self, method: str | Method, options: Mapping[str, Any] | None = None) -> Method:
        """A method, from its name and settings; an object is given back as it is.

        Args:
            method: a name or an object.
            options: settings by name, where they are not the defaults.

        Raises:
            ConfigError: there is no such method or setting.
        """
        if isinstance(method, Method):
            return method
        kind = self.get(method)
        known: list[str] = [item.name for item in fields(kind)] if is_dataclass(kind) else []
        strange = sorted(set(options or {}) - set(known))
        if strange:
            has = f"has the options {', '.join(known)}" if known else "has no options"
            raise ConfigError(f"method {method!r} {has}, not {', '.join(map(repr, strange))}")
        return kind(**(options or {}))

    def register(self, name: str, needs_data: bool = False) -> Callable[[Chooser], Chooser]:
        """Decorator that makes a `Method` class, or a function `Task -> Choice`, available as `method=name`.

        Args:
            name: what users call it.
            needs_data: whether it cannot do without.

        Raises:
            ConfigError: the name is taken.
        """

        def add(chooser: Chooser) -> Chooser:
            if name in self._known:
                raise ConfigError(f"method {name!r} exists already; choose another name")
            kind: Any = chooser
            if not isinstance(chooser, type):
                choose = {"choose": lambda self, task: chooser(task), "__doc__": chooser.__doc__}
                kind = type(getattr(chooser, "__name__", "Own"), (Method,), choose)
            kind.name, kind.needs_data = name, needs_data
            kind.summary = (kind.__doc__ or "").strip().split("\n")[0]
            self._known[name] = kind
            return chooser

        return add


methods = Methods()
