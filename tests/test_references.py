"""Every file and section that a text names exists: in documents, docstrings, comments and settings files.

`make check` runs it. A name may leave out the folders before it, as in `raft/reads.py`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.documents import CODE, anchors
from tests.sources import ROOT, committed_files, tree_of

TEXTS: Final = {".md", ".yml", ".yaml", ".toml", ".ini", ".service", ".timer", ".conf", ".js"}
NAMED: Final = re.compile(
    r"(?<![\w./:*<{-])(?:\.\./)*(?P<name>[A-Za-z_][\w./-]*\.(?:py|md|sql))\b(?![\w/(*{])"
)
SECTION: Final = re.compile(r"(?P<page>[\w/-]+\.md),?\s+\"(?P<title>[^\"]+)\"")
SECTION_BEFORE: Final = re.compile(r"\"(?P<title>[^\"]+)\" (?:in|of)\s+(?P<page>[\w/-]+\.md)")
COMMENT: Final = re.compile(r"(?:^|  )[ ]*# (.+)$", re.MULTILINE)
LINK: Final = re.compile(r"\]\((?!https?:)(?P<page>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
MADE_LATER: Final = {  # by `make docs`, by a recipe, and by programs of others
    r"docs/reference/.*|reference/.*",
    r"debian/.*|PROTOCOL-HTTP2\.md|doc\.go",
    r"FILE\.py|NAME\.py|test_command_\*\.py",
}
FILES: Final = [path.relative_to(ROOT) for path in committed_files()]
ENDS: Final = {"/".join(path.parts[start:]) for path in FILES for start in range(len(path.parts))}


def texts_of(path: Path) -> Iterator[str]:
    """Yield what people read in a file: of Python docstrings and comments, else everything."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield source
        return
    for found in ast.walk(tree_of(path)):
        if isinstance(found, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(found) or ""
    yield "\n".join(COMMENT.findall(source))


def faults_of(path: Path) -> Iterator[str]:
    """Yield each name in a file that leads nowhere."""
    for text in texts_of(path):
        for found in NAMED.finditer(text):
            if not exists(found["name"], path) and not any(
                re.fullmatch(x, found["name"]) for x in MADE_LATER
            ):
                yield f"no file {found['name']}"
        for pattern in (SECTION, SECTION_BEFORE):
            for found in pattern.finditer(text):
                title = " ".join(found["title"].split())
                if exists(found["page"], path) and anchors(f"# {title}") & anchors_of(found["page"]) == set():
                    yield f"no section {title!r} in {found['page']}"
        if path.suffix == ".md":
            yield from links_of(path, text)


def exists(name: str, path: Path) -> bool:
    """Whether a committed file has this name, seen from the file that names it, or at its end."""
    return name in ENDS or (path.parent / name).exists()


def anchors_of(page: str) -> set[str]:
    """Return the anchors of all files that have this name."""
    found = [file for file in FILES if f"/{file}".endswith(f"/{page}")]
    return set().union(*(anchors((ROOT / file).read_text("utf-8")) for file in found))


def links_of(path: Path, text: str) -> Iterator[str]:
    """Yield each link of a page that leads nowhere."""
    for found in LINK.finditer(CODE.sub("", text)):
        target = path.parent / found["page"] if found["page"] else path
        if "reference" in target.parts:
            continue  # `make docs` makes it, and checks these links
        if not target.exists():
            yield f"no file {found['page']}"
        elif found["anchor"] and found["anchor"] not in anchors(target.read_text("utf-8")):
            yield f"no section #{found['anchor']} in {target.name}"


def test_what_texts_name_exists() -> None:
    files = [
        path for path in committed_files() if path.suffix in {*TEXTS, ".py"} and "vendor" not in path.parts
    ]
    faults = [f"{path.relative_to(ROOT)}: {fault}" for path in files for fault in faults_of(path)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "see machine/touched_things.py",
        "(security-guide.md)",
        "[there](no-page.md)",
        "[there](#no-section)",
        'CONTRIBUTING.md, "No such section"',
        '"No such section" in CONTRIBUTING.md',
    ],
)
def test_check_notices(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{text}\n")
    assert list(faults_of(page))


def test_check_accepts_what_exists(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '# Page\n\n[up](#page), tests/test_tidy.py, test_tidy.py and CONTRIBUTING.md, "The loop"\n'
    )
    assert not list(faults_of(page))
