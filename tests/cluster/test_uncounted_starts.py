"""A node whose disk does not keep that it was started again serves as before, with each of its workers."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.base.config import NodeFiles
from tests.cluster.harness import Cluster

WORKERS = 3


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Cluster]:
    """One node of three workers."""
    options = ("--workers", str(WORKERS))
    with Cluster(tmp_path, node_count=1, replicas=1, write_quorum=1, node_options=options) as started:
        yield started


@pytest.mark.long
def test_start_that_the_disk_does_not_count_is_no_other_process_to_a_worker(alone: Cluster) -> None:
    """The copy on the disk tells of the start, but the first process tells none."""
    [node] = alone.nodes
    kept = NodeFiles(alone.data(node)).instance
    alone.kill(node)
    kept.unlink()
    kept.mkdir()  # so that the copy is written, and this is not
    alone.restart(node)
    alone.wait_healthy()
    content = os.urandom(100_000)
    for _ in range(4 * WORKERS):
        file_uuid = alone.store(content)
        assert alone.get(f"/files/{file_uuid}", node=node).body == content
    assert "another process" not in "".join(alone.logs().values()).lower()
