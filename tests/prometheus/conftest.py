"""The long suite of a real Prometheus: not part of `make test`, run by `make prometheus`."""

import os
import shutil
import subprocess

import pytest

INSTALL_TIMEOUT_S = 240.0


@pytest.fixture(scope="session")
def prometheus() -> str:
    """The program; skips the test where there is none, and none can be installed."""
    if found := shutil.which("prometheus"):
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("not installed: Debian's package prometheus")
    # A unit of a daemon that the package would start has no place here.
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", "prometheus"]):
        done = subprocess.run(
            ["apt-get", "--quiet", *arguments],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"},
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"cannot install prometheus: {done.stderr.strip()[-300:]}")
    return shutil.which("prometheus") or pytest.skip("the package has no prometheus command")


@pytest.fixture(scope="session")
def promtool(prometheus: str) -> str:
    """Its tool, which comes with it."""
    return shutil.which("promtool") or pytest.skip(f"{prometheus} comes without promtool")
