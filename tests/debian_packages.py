"""Programs of Debian that a long suite needs: installed where that can be done, else it is skipped."""

import os
import shutil
import subprocess
from collections.abc import Mapping

import pytest

INSTALL_TIMEOUT_S = 240.0


def require(packages: Mapping[str, str], *, timeout_s: float = INSTALL_TIMEOUT_S) -> None:
    """Have programs, each with the package that brings it. Skips the test, with the reason."""
    missing = sorted({package for program, package in packages.items() if shutil.which(program) is None})
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"not installed: {', '.join(missing)}")
    # A unit of a daemon that a package would start has no place here.
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", "--quiet", *arguments],
            env=os.environ | quiet,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"cannot install {', '.join(missing)}: {done.stderr.strip()[-300:]}")


def installed(program: str, package: str) -> str:
    """Where a program of a package is. Skips the test where it is not, and cannot be had."""
    require({program: package})
    return shutil.which(program) or pytest.skip(f"the package {package} has no {program} command")
