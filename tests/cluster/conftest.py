"""Tests that speak to real processes run on the loop that the product runs on; some of them kill."""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

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
