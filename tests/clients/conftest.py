"""The long suite of stock clients: not part of `make test`, run by `make clients`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests out unless long ones are asked for."""
    if config.option.markexpr:
        return
    left_out = [item for item in items if HERE in item.path.parents]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes, two copies: every other node passes uploads on, and streams from another one."""
    directory = tmp_path_factory.mktemp("four")
    with Cluster(directory, node_count=4, replicas=2, write_quorum=2) as started:
        yield started
