"""An upload goes on when members of its placement have been removed from the cluster."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.upload_steps import Steps

pytestmark = pytest.mark.long  # run by `make long`

MIB = 1 << 20
SIZE = 3 * MIB


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", node_count=4) as started:
        yield started


def remove(cluster: Cluster, away: Member, asked: Member) -> None:
    """Drain it and take it out for good, as an operator does with a node that holds nothing."""
    assert cluster.post(f"/cluster/nodes/{away.id}/drain", node=asked).status == 200
    wait_until(
        lambda: cluster.request("DELETE", f"/cluster/nodes/{away.id}", node=asked).status in (200, 204),
        what="a node that is removed",
        timeout_s=60,
    )
    cluster.terminate(away)


def test_upload_goes_on_when_all_other_members_were_removed(four: Cluster) -> None:
    steps = Steps(four, os.urandom(SIZE))
    assert steps.patch(0, MIB).status == 204
    for away in steps.wait_members():
        remove(four, away, steps.holder)
    answer = steps.patch_until_taken(MIB, 2 * MIB, steps.holder)
    assert answer.status == 204, answer.body
    assert steps.patch_until_taken(2 * MIB, SIZE, steps.holder).status == 204
    assert steps.stored(steps.holder) == steps.content
