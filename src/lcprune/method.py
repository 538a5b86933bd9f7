"""Ways to choose what goes, by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from lcprune.errors import ConfigError
from lcprune.task import Choice, Task

Function = TypeVar("Function", bound=Callable[..., Choice])


@dataclass(frozen=True)
class Method:
    """A way to choose units.

    Attributes:
        name: what users call it.
        function: `Task -> Choice`.
        needs_data: whether it judges networks by their loss.
        summary: the first line of its docstring.
        options: dataclass of its own settings, which a task then holds; None if it has none.
    """

    name: str
    function: Callable[[Task], Choice]
    needs_data: bool
    summary: str
    options: type[Any] | None = None

    def read_options(self, given: Mapping[str, Any] | None) -> Any:
        """The method's own settings: its defaults, changed as the user says.

        Raises:
            ConfigError: there is no such setting.
        """
        known = [item.name for item in fields(self.options)] if self.options else []
        strange = sorted(set(given or {}) - set(known))
        if strange:
            has = f"has the options {', '.join(known)}" if known else "has no options"
            raise ConfigError(f"method {self.name!r} {has}, not {', '.join(map(repr, strange))}")
        return self.options(**(given or {})) if self.options else None


class Methods:
    """What `method=` of `prune` can be: `lcprune.methods()` lists the names.

    @lcprune.methods.register("mine", needs_data=False)
    def mine(task):
        return lcprune.methods.Choice(task.ranking.select(task.limits))
    """

    def __init__(self) -> None:
        self.Choice, self.Method, self.Task = Choice, Method, Task  # what a method is made of
        self._known: dict[str, Method] = {}

    def __call__(self) -> tuple[str, ...]:
        """Every method that can be named, sorted."""
        return self.names()

    def names(self) -> tuple[str, ...]:
        """Every method that can be named, sorted."""
        return tuple(sorted(self._known))

    def get(self, name: str) -> Method:
        """The method of that name.

        Raises:
            ConfigError: there is none.
        """
        if name not in self._known:
            near = difflib.get_close_matches(str(name), self.names(), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"there is no method {name!r}.{hint} There are {', '.join(self.names())}")
        return self._known[name]

    def register(
        self, name: str, needs_data: bool = False, options: type[Any] | None = None
    ) -> Callable[[Function], Function]:
        """Decorator that makes a function `Task -> Choice` available as `method=name`.

        Args:
            name: what users call it.
            needs_data: whether it cannot do without.
            options: dataclass of settings of its own, with defaults; `prune(options=...)` changes them.

        Raises:
            ConfigError: the name is taken.
        """

        def add(function: Function) -> Function:
            if name in self._known:
                raise ConfigError(f"method {name!r} exists already; choose another name")
            summary = (function.__doc__ or "").strip().split("\n")[0]
            self._known[name] = Method(name, function, needs_data, summary, options)
            return function

        return add


methods = Methods()
