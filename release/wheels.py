"""The wheels that the product consists of: its own two, and those that constraints-runtime.txt pins by hash.

Every package is installed from such a folder, and pip has access to nothing else. The packages that build our
wheels are pinned as well, but not installed.
"""

import os
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
PINS: Final = ROOT / "constraints-runtime.txt"
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def gather(folder: Path, python: Path, platforms: tuple[str, ...] = ()) -> None:
    """Fill the folder with wheels for that interpreter, or its like on another platform (options of pip)."""
    folder.mkdir(parents=True, exist_ok=True)
    pinned = ("--require-hashes", "--only-binary", ":all:", "-r", str(PINS), "-d", str(folder))
    run(*PIP, "--python", str(python), "download", *pinned, *platforms)
    for project in (ROOT / "client", ROOT):
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project))


def install(folder: Path, python: Path) -> None:
    """Install the product, and what it needs, into the environment of that interpreter."""
    run(
        *PIP, "--python", str(python), "install", "--no-index", "-f", str(folder), "--no-compile", "filestore"
    )


def install_for_platform(folder: Path, python: Path, library: Path, platforms: tuple[str, ...]) -> None:
    """Install for another platform, whose interpreter does not run here.

    The packages go into the folder that it imports from.
    """
    place = ("--target", str(library), "--only-binary", ":all:", *platforms)
    local = ("--no-index", "-f", str(folder), "--no-compile")
    run(*PIP, "--python", str(python), "install", *place, *local, "filestore")


def product_version() -> str:
    """Return the content of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


@cache
def epoch() -> int:
    """Return the time of all built files: that of the newest commit, or SOURCE_DATE_EPOCH."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(given or output("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))


def run(*command: str) -> None:
    """Run to its end, its output on ours. Raises CalledProcessError."""
    subprocess.run(command, env=_environment(), check=True)


def output(*command: str) -> str:
    """Run a command and return its output. Raises CalledProcessError."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _environment() -> dict[str, str]:
    """Return an environment in which the same input gives the same bytes."""
    return os.environ | {"SOURCE_DATE_EPOCH": str(epoch()), "PYTHONHASHSEED": "0"}
