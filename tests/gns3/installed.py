"""A gns3-server in an environment of its own below `.gns3-server`, which is kept until `make clean`."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

VERSION: Final = "3.0.6"
VERSION_2: Final = "2.2.61"
ROOT: Final = Path(__file__).resolve().parent.parent.parent
ENVIRONMENTS: Final = ROOT / ".gns3-server"
INSTALL_TIMEOUT_S: Final = 600.0


class NotInstalled(Exception):
    """gns3-server cannot be had here; the text says why."""


def gns3server(version: str = VERSION) -> Path:
    """The program; skips the test where it cannot be installed."""
    try:
        return installed(version)
    except NotInstalled as error:
        pytest.skip(str(error))


def installed(version: str = VERSION) -> Path:
    """The program. Raises NotInstalled."""
    environment = ENVIRONMENTS / version
    program, marker = environment / "bin" / "gns3server", environment / ".installed"
    if marker.exists():
        return program
    shutil.rmtree(environment, ignore_errors=True)
    pip = [
        str(environment / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    for arguments in ([sys.executable, "-m", "venv", str(environment)], [*pip, f"gns3-server=={version}"]):
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise NotInstalled(f"cannot install gns3-server {version}: {done.stderr.strip()[-300:]}")
    marker.touch()
    return program
