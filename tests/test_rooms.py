"""The rooms of the house: imports go one way, nobody reaches into what is another's own, and the map shows all."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import lcprune

ROOT = Path(lcprune.__file__).parent
HOUSE = Path(__file__).parents[1]
PLACES = "", "benchmarks", "benchmarks/paper"  # of files that are named without their folder


class Import(NamedTuple):
    """One import of ours: the module that imports, the line, the module imported, and the name out of it."""

    by: str
    line: int
    module: str
    name: str


def files() -> dict[str, Path]:
    """Module -> file."""
    paths = {p.relative_to(ROOT.parent).with_suffix(""): p for p in ROOT.rglob("*.py")}
    return {".".join(path.parts).removesuffix(".__init__"): file for path, file in paths.items()}


def room(module: str) -> str:
    """The package or module right below `lcprune`."""
    return module.split(".")[1] if "." in module else module


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Everything that can run; not what only a type checker reads."""
    yield tree
    checking = isinstance(tree, ast.If) and ast.unparse(tree.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    for child in tree.orelse if checking else ast.iter_child_nodes(tree):
        yield from nodes(child)


def imports() -> list[Import]:
    """Every import of ours by ours, in functions too."""
    known, found = files(), []
    for module, path in known.items():
        for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found += [Import(module, node.lineno, alias.name, "") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}:{node.lineno}: imports name their module in full"
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    own = (whole, "") if whole in known else (str(node.module), alias.name)
                    found.append(Import(module, node.lineno, *own))
    return [one for one in found if one.module.split(".")[0] == "lcprune"]


def test_imports_between_rooms_go_one_way() -> None:
    needs: dict[str, set[str]] = {}
    lines: dict[tuple[str, str], str] = {}
    for one in imports():
        here, there = room(one.by), room(one.module)
        if here != there and "lcprune" not in (here, there):
            needs.setdefault(here, set()).add(there)
            lines[here, there] = f"{one.by}:{one.line} imports {one.module}"
    assert {"graph", "select", "study", "cli"} <= set(needs)
    try:
        list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        rooms = error.args[1][::-1]
        steps = [lines[pair] for pair in pairwise(rooms)]
        raise AssertionError("rooms import one another:\n" + "\n".join(steps)) from None


def test_only_the_command_line_uses_the_package_as_its_users_do() -> None:
    whole = [one for one in imports() if one.module == "lcprune" and room(one.by) not in ("lcprune", "cli")]
    assert not whole, "import what is needed from the room that has it"


def test_no_room_knows_the_command_line() -> None:
    assert {room(one.by) for one in imports() if room(one.module) == "cli"} == {"__main__", "cli"}


def test_no_module_imports_what_is_private_to_another() -> None:
    private = [one for one in imports() if any(part.startswith("_") for part in (*one.module.split("."), one.name))]
    assert not private, "give it a public name, or move it"


def test_no_module_touches_private_attributes_of_objects_of_another() -> None:
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in files().items()}
    homes: dict[str, set[str]] = {}
    for module, tree in trees.items():
        for name in private_names(tree):
            homes.setdefault(name, set()).add(module)
    touched = [
        f"{module}:{node.lineno}: {ast.unparse(node)}"
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and homes.get(node.attr, set()) - {module}
        if ast.unparse(node.value) not in ("self", "cls", "super()")
    ]
    assert not touched, "give it a public name"


def private_names(tree: ast.AST) -> Iterator[str]:
    """Names with one leading underscore that a module defines: functions, methods, and attributes that it sets."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            name = node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            name = node.attr
        else:
            continue
        if name.startswith("_") and not name.startswith("__"):
            yield name


def test_the_map_names_every_file_and_no_other() -> None:
    ours = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")}
    known, unknown = set[str](), []
    for line in (HOUSE / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines():
        rooms = re.findall(r"`([\w/]+/)`", line.split("|")[1]) if line.startswith("|") else []
        for name, symbol in re.findall(r"`([\w/]+\.py)(?:: ([\w.]+))?`", line):
            own = [path for path in [*(room + name for room in rooms), name] if path in ours][:1]
            known.update(own)
            if not own and not any((HOUSE / place / name).is_file() for place in PLACES):
                unknown.append(name)
            if own and symbol and not re.search(rf"(def|class) {symbol.split('.')[-1]}\b", (ROOT / own[0]).read_text()):
                unknown.append(f"{name}: {symbol}")
    missing = sorted(path for path in ours - known if not path.endswith("__init__.py"))
    assert not missing, "name them in the rows of their rooms in docs/architecture.md"
    assert not unknown, "docs/architecture.md names what does not exist"
