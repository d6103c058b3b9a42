"""A store, and two GNS3 servers: the one that has labs, and the one that they come back on."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

from tests.cluster.harness import Cluster
from tests.gns3.installed import gns3server
from tests.gns3.lab_server import LabServer
from tests.gns3.operator import Operator


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The hook of pytest-asyncio."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes."""
    with Cluster(tmp_path_factory.mktemp("store")) as started:
        yield started


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """The server that has labs, anew for each file of tests."""
    with LabServer(gns3server(), tmp_path_factory.mktemp("old")) as started:
        yield started


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """An empty one."""
    with LabServer(gns3server(), tmp_path_factory.mktemp("new")) as started:
        yield started


@pytest.fixture(scope="module")
def operator(
    store: Cluster, old: LabServer, new: LabServer, tmp_path_factory: pytest.TempPathFactory
) -> Operator:
    """Who is signed in to both."""
    made = Operator(store, tmp_path_factory.mktemp("operator"))
    made.login("old", old)
    made.login("new", new)
    return made
