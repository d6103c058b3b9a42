"""Fixtures: a cluster of real processes that harmless tests share, and one of its own for the others."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cluster.harness import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Cluster"]:
    """Three coordinators and three nodes. Nobody who uses this one may stop or damage anything."""
    from tests.cluster.harness import Cluster  # here: tests of one part do not need the whole product

    with Cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator["Cluster"]:
    """The same, for one test that kills."""
    from tests.cluster.harness import Cluster

    with Cluster(tmp_path / "cluster") as started:
        yield started
