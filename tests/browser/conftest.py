"""The long suite of a real browser: not part of `make test`, run by `make browser`."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.browser import axe
from tests.browser.chromium import Browser, Page
from tests.cluster.harness import Cluster
from tests.debian_packages import require

PACKAGES = {"chromium": "chromium", "certutil": "libnss3-tools"}  # Debian's, by the program that they bring


@pytest.fixture(scope="session")
def programs() -> None:
    """Skip the test where there is no browser, and none can be installed."""
    require(PACKAGES)


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
