"""What the site needs beyond MkDocs: patterns in the nav, files of the repository that pages link to, formulas."""

from __future__ import annotations

import html
import re
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
LINK = re.compile(r"(?<=\]\()((?:\.\./)+[\w./-]+)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_config(config: Any) -> None:
    """Patterns such as `how-to/*.md` become the pages that are there and not listed before."""
    listed: set[str] = set()

    def pages(item: Any) -> list[Any]:
        if isinstance(item, list):
            return [page for part in item for page in pages(part)]
        if isinstance(item, dict):
            return [{title: pages(inside) for title, inside in item.items()}]
        found = sorted({path.relative_to(DOCS).as_posix() for path in DOCS.glob(item)} - listed)
        listed.update(found)
        return found or [item]  # MkDocs says which page is missing

    config.nav = pages(config.nav)


def on_files(files: Files, config: Any) -> Files:
    """Records that pages link to, outside this folder, become part of the site."""
    for page in files.documentation_pages():
        for outside in {path for link in LINK.findall(page.content_string) if (path := _outside(page, link))}:
            if files.get_file_from_path(outside) is None:
                files.append(File.generated(config, outside, abs_src_path=str(DOCS.parent / outside)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to these records point to their place in the site."""

    def moved(match: re.Match[str]) -> str:
        outside = _outside(page.file, match[1])
        return relpath(outside, Path(page.file.src_uri).parent.as_posix()) if outside else match[1]

    return LINK.sub(moved, markdown)


def _outside(file: File, link: str) -> str | None:
    """The path in the repository, if this link of a page leads out of docs/ to a file."""
    path = normpath(f"docs/{Path(file.src_uri).parent.as_posix()}/{link}")
    return None if path.startswith("docs/") or not (DOCS.parent / path).is_file() else path


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw by themselves."""

    def drawn(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]).strip(), display=display).replace("\\_", "_")

    return FORMULA.sub(drawn, content)
