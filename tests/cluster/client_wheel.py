"""The client's wheel in an environment of its own, without anything else of this repository."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

CLIENT = Path(__file__).resolve().parents[2] / "client"
INSTALL_TIMEOUT_S = 600.0


def build_wheel(directory: Path) -> Path:
    """The wheel, made as for a release, but in this environment."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", directory, CLIENT],
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (wheel,) = directory.glob("filestore_client-*.whl")
    return wheel


def installed(directory: Path, *requirements: str) -> Path:
    """The interpreter of a new environment that has these packages; skips the test where pip gets none."""
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    python = directory / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements],
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"pip cannot install {', '.join(requirements)}: {done.stderr.strip()[-300:]}")
    return python


def run(python: Path, program: str, arguments: Sequence[str], environment: dict[str, str]) -> str:
    """What a program prints that is run by this interpreter, in an empty directory, to its end."""
    done = subprocess.run(
        [python, "-W", "error", "-c", program, *arguments],
        cwd=python.parent,
        env=clean_environment() | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Without what leads Python to this repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FILESTORE"))}
