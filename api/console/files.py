"""The files of the web console in memory, each with its type, entity tag and compressed form.

All paths contain a digest of the content, so that browsers cache the files forever and never mix versions.
Browsers request only the page itself each time. The files are read once, and reading blocks.
"""

import functools
import gzip
import hashlib
import html
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PLACE: Final = Path(__file__).parent / "static"
HELP: Final = PLACE / "help"  # a link to docs/; only its own pages are served, no folders
PAGE: Final = "index.html"
_VERSION_MARK: Final = "@version@"  # in the page, for the folder of everything else
_CONTENT_MARK: Final = "@content@"  # in the page: whether this process serves the content of files
_NODES_MARK: Final = "@nodes@"  # in the page: origins of nodes, with spaces between
_COORDINATORS_MARK: Final = "@coordinators@"  # in the page: origins of coordinators
_VERSION_HEX: Final = 16
FILE_BYTES_MAX: Final = 1 << 20
FILES_MAX: Final = 200
PAGES_KEPT_MAX: Final = 8
_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class Served:
    """A file to send, plain and compressed. `tag` is the SHA-256 of the plain form."""

    content_type: str
    tag: str
    body: bytes
    packed: bytes


@dataclass(frozen=True, slots=True)
class ConsoleFiles:
    """All files: the page with its marks, and the other files by path below `/console/{version}/`."""

    version: str
    page: str
    parts: Mapping[str, Served]


@functools.cache
def console_files() -> ConsoleFiles:
    """Return the files of this installation. The first call blocks."""
    contents = dict(_read())
    whole = hashlib.sha256()
    for name, content in contents.items():
        whole.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    version = whole.hexdigest()[:_VERSION_HEX]
    return ConsoleFiles(
        version=version,
        page=contents.pop(PAGE).decode("utf-8"),
        parts={name: _served(name, content) for name, content in contents.items()},
    )


@functools.lru_cache(maxsize=PAGES_KEPT_MAX)
def console_page(*, has_content: bool, nodes: tuple[str, ...], coordinators: tuple[str, ...]) -> Served:
    """Return the page with its marks replaced by these values. Blocks."""
    files = console_files()
    page = files.page.replace(_VERSION_MARK, files.version)
    page = page.replace(_CONTENT_MARK, "yes" if has_content else "no")
    for mark, origins in ((_NODES_MARK, nodes), (_COORDINATORS_MARK, coordinators)):
        page = page.replace(mark, html.escape(" ".join(origins)))
    return _served(PAGE, page.encode("utf-8"))


def _read() -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file, sorted by name."""
    # rglob follows links to folders from Python 3.13 on.
    own = (path for path in PLACE.rglob("*") if path.suffix in _TYPES and HELP not in path.parents)
    paths = sorted(path for path in (*own, *HELP.glob("*.md")) if path.is_file())
    assert len(paths) <= FILES_MAX
    for path in paths:
        content = path.read_bytes()
        assert len(content) <= FILE_BYTES_MAX, path.name
        yield path.relative_to(PLACE).as_posix(), content


def _served(name: str, content: bytes) -> Served:
    return Served(
        content_type=_TYPES[Path(name).suffix],
        tag=hashlib.sha256(content).hexdigest(),
        body=content,
        packed=gzip.compress(content, mtime=0),
    )
