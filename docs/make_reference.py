"""Write docs/reference.md from the docstrings of the public names. `--check` only says whether it is up to date."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import lcprune
from lcprune.scoring import Metrics

TARGET = Path(__file__).with_name("reference.md")
ROOMS: tuple[tuple[str, Any, tuple[str, ...] | None], ...] = (
    ("lcprune", lcprune, None),
    ("lcprune.methods", lcprune.methods, ("get", "make", "names", "register", "Choice", "Method", "Task")),
    ("lcprune.metrics", lcprune.metrics, (*(name for name in vars(Metrics) if name[0] != "_"), "Context", "Metric")),
    ("lcprune.baselines", lcprune.baselines, None),
    ("lcprune.models", lcprune.models, ("build", "example_input", "input_shape", "names", "load_weights")),
    ("lcprune.data", lcprune.data, ("load", "digits", "own", "Dataset", "OwnData", "from_arrays")),
    ("lcprune.tune", lcprune.tune, None),
    ("lcprune.latency", lcprune.latency, None),
    ("lcprune.engine", lcprune.engine, None),
    ("lcprune.export", lcprune.export, ("export", "Exported")),
    ("lcprune.report", lcprune.report, ("write_report", "collect", "summarise", "make_figures")),
)


def reference() -> str:
    """The page as text."""
    parts = ["# API reference", "", "Made from the docstrings by `make docs`; do not edit.", ""]
    for path, module, names in ROOMS:
        chosen = sorted(names or getattr(module, "__all__", ()), key=lambda name: (name[0].isupper(), name))
        objects = [(name, getattr(module, name)) for name in chosen]
        parts += [f"## `{path}`", "", _module(module)]
        for name, value in objects:
            if inspect.isroutine(value) or inspect.isclass(value):
                parts += _entry(f"{path}.{name}", value)
    return "\n".join(parts).rstrip() + "\n"


def _entry(path: str, value: Any) -> list[str]:
    if inspect.isclass(value) and issubclass(value, Exception):
        return [f"### `{path}`", "", inspect.getdoc(value) or "", ""]
    lines = [
        f"### `{path}`",
        "",
        "```python",
        f"{path}{_signature(value)}",
        "```",
        "",
        _block(inspect.getdoc(value) or ""),
    ]
    if inspect.isclass(value):
        for name, member in vars(value).items():
            function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            if name.startswith("_") or not (inspect.isfunction(function) or isinstance(member, property)):
                continue
            shown = "" if isinstance(member, property) else _signature(function)
            summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
            lines.append(f"- `{name}{shown}`: {summary}")
        lines.append("")
    return lines


def _signature(value: Any) -> str:
    if inspect.isclass(value) and not dataclasses.is_dataclass(value) and value.__init__ is object.__init__:
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    # Defaults that are functions or objects would print their address.
    parameters = []
    for parameter in signature.parameters.values():
        if callable(parameter.default) and parameter.default is not parameter.empty:
            default = _Name(getattr(parameter.default, "__name__", type(parameter.default).__name__))
            parameter = parameter.replace(default=default)
        if isinstance(parameter.annotation, str):
            parameter = parameter.replace(annotation=_Name(parameter.annotation))
        parameters.append(parameter)
    returns = signature.return_annotation
    arrow = "" if returns in (signature.empty, "None", None) else f" -> {returns}"
    if len(parameters) < 4:
        return "(" + ", ".join(map(str, parameters)) + ")" + arrow
    lines = [f"    {parameter}," for parameter in parameters]
    first = next((i for i, p in enumerate(parameters) if p.kind is p.KEYWORD_ONLY), None)
    if first is not None and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        lines.insert(first, "    *,")
    return "\n".join(["(", *lines, ")" + arrow])


def _module(module: Any) -> str:
    # Indented examples stay code, so the text of a module is taken as it was written.
    text = (module.__doc__ if inspect.ismodule(module) else inspect.getdoc(module) or "").strip()
    first, _, rest = text.partition("\n\n")
    examples = re.split(r"\n{2,}", rest) if rest else []
    code = re.compile(r"^( {4}|\w+(, \w+)* = |for |import |@|lcprune\.|\w+\.\w+)")
    return "\n\n".join([first, *(_fenced(part) if code.match(part) else part for part in examples)]) + "\n"


def _fenced(text: str) -> str:
    return f"```python\n{textwrap.dedent(text)}\n```"


class _Name(str):
    def __repr__(self) -> str:
        return str(self)


def _block(text: str) -> str:
    """A Google-style docstring as Markdown: sections become lists."""
    out: list[str] = []
    section = ""
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped in ("Args:", "Attributes:", "Returns:", "Raises:", "Yields:"):
            section = stripped
            out += ["", f"**{stripped[:-1]}**", ""]
        elif section and line.startswith("    ") and not line.startswith("     "):
            name, colon, rest = stripped.partition(": ")
            listed = section in ("Args:", "Attributes:", "Raises:") and colon
            out.append(f"- `{name}`: {rest}" if listed else stripped)
        elif section and stripped:
            out.append(f"  {stripped}" if line.startswith("        ") else stripped)
        else:
            section = section if not stripped else ""
            out.append(line)
    return "\n".join(out).strip() + "\n"


if __name__ == "__main__":
    text = reference()
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.is_file() and TARGET.read_text(encoding="utf-8") == text else "run: make docs")
    TARGET.write_text(text, encoding="utf-8")
