"""The long suite of stock clients: not part of `make test`, run by `make clients`."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.harness import Cluster

INSTALL_TIMEOUT_S = 240.0


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes, two copies: every other node passes uploads on, and streams from another one."""
    directory = tmp_path_factory.mktemp("four")
    with Cluster(directory, node_count=4, replicas=2, write_quorum=2) as started:
        yield started


@pytest.fixture(scope="session")
def restic() -> str:
    """The program; skips the test where there is none, and none can be installed."""
    return installed("restic", "restic")


@pytest.fixture(scope="session")
def nginx() -> str:
    """The same."""
    return installed("nginx", "nginx-light")


def installed(program: str, package: str) -> str:
    """Where a program of one of Debian's packages is. Skips the test where it is not, and cannot be had."""
    if found := shutil.which(program):
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"not installed: Debian's package {package}")
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", package]):
        done = subprocess.run(
            ["apt-get", "--quiet", *arguments],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"cannot install {package}: {done.stderr.strip()[-300:]}")
    return shutil.which(program) or pytest.skip(f"the package {package} has no {program} command")
