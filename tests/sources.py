"""The sources of this repository, for the tests that read them. No test is here."""

import ast
import functools
import gc
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def committed_files() -> list[Path]:
    """Every file that a commit would hold; in a copy without git, whatever is there."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names = [name for name in listing.stdout.decode().split("\0") if name]
        return [ROOT / name for name in sorted(set(names)) if (ROOT / name).is_file()]
    return sorted(
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and not any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)
    )


SOURCES = [path for path in committed_files() if path.suffix == ".py"]


@functools.cache  # parsing takes seconds: only who runs these tests does it, not everybody who collects
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return parse(path.read_text(encoding="utf-8"))


def parse(source: str) -> ast.Module:
    """Return the syntax tree of a source. The garbage collector skips it: it took four fifths of the time."""
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.freeze()
        gc.enable()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))
