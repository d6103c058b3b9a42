"""The long suite of stock clients: not part of `make test`, run by `make clients`."""

from collections.abc import Iterator

import pytest

from tests.cluster.harness import Cluster
from tests.debian_packages import installed


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
