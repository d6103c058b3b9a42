"""The client's wheel in an environment of its own, as with who installs it."""

import os
import subprocess
import sys
from pathlib import Path

from bench.rows import Skipped

CLIENT = Path(__file__).resolve().parents[1] / "client"
INSTALL_TIMEOUT_S = 600.0


def build_wheel(directory: Path) -> Path:
    """The wheel, made as for a release, but in this environment."""
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        directory,
        CLIENT,
    ]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    (wheel,) = directory.glob("filestore_client-*.whl")
    return wheel


def installed(directory: Path, *requirements: str) -> Path:
    """The interpreter of a new environment that has these packages. Raises Skipped where pip gets none."""
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
        raise Skipped(f"pip cannot install {', '.join(requirements)}: {done.stderr.strip()[-300:]}")
    return python


def clean_environment() -> dict[str, str]:
    """Without what leads Python to this repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FILESTORE"))}
