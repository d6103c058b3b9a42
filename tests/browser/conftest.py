"""The long suite of a real browser: not part of `make test`, run by `make browser`."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.browser import axe
from tests.browser.chromium import Browser, Page
from tests.cluster.harness import Cluster

PACKAGES = {"chromium": "chromium", "certutil": "libnss3-tools"}  # Debian's, by the program that they bring
INSTALL_TIMEOUT_S = 240.0


@pytest.fixture(scope="session")
def programs() -> None:
    """Skip the test where there is no browser, and none can be installed."""
    missing = [package for program, package in PACKAGES.items() if shutil.which(program) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"not installed: {', '.join(missing)}")
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", "--quiet", *arguments],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"cannot install {', '.join(missing)}: {done.stderr.strip()[-300:]}")


@pytest.fixture(scope="session")
def browser(programs: None, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser of somebody who has installed the cluster's root certificate, and nothing else."""
    with Browser(tmp_path_factory.mktemp("browser"), root=cluster.ca) as started:
        yield started


@pytest.fixture(scope="session")
def axe_script() -> str:
    """axe-core, for `axe.violations`."""
    return axe.source()


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """An empty tab of a profile of its own."""
    async with Page(browser) as opened:
        yield opened
