"""Tests that speak to real processes run on the loop that the product runs on; some of them kill."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from filestore_client import Client
from tests.cluster.connections import client_of
from tests.cluster.harness import Cluster


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], AbstractEventLoop]]:
    """The hook of pytest-asyncio."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes, three copies, a write quorum of two. Each test restarts what it kills."""
    with Cluster(tmp_path_factory.mktemp("cluster"), node_count=4) as started:
        yield started


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three coordinators and three nodes, for a file. Each test starts again what it ends, or is the last."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process remember uploads in a directory of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def client(cluster: Cluster, own_memory: None) -> Iterator[Client]:
    """The client for code that does not await, as the admin."""
    with client_of(cluster) as made:
        yield made
