"""Content whose digest only its request told, which ends before anybody looked, or could tell the log."""

import os
import time
from typing import Any

import pytest

from deploy.processes import wait_until
from node.uploads.progress import REPORT_S
from tests.cluster.harness import Cluster
from tests.cluster.test_uploads import digest_of
from tests.cluster.upload_steps import Steps

SIZE_BYTES = 4_000_000
UNENDING: dict[str, Any] = {"Transfer_Encoding": "chunked", "Repr_Digest": digest_of(b"other")}


@pytest.mark.long
@pytest.mark.timeout(180)
def test_content_with_another_digest_is_not_completed_when_the_log_could_not_be_told(
    own_cluster: Cluster,
) -> None:
    half_bytes = SIZE_BYTES // 2
    steps = Steps(own_cluster, os.urandom(SIZE_BYTES))
    assert steps.patch(0, half_bytes).status == 204
    leader = own_cluster.leader()
    gone = [leader, next(other for other in own_cluster.coordinators if other != leader)]
    with steps.begin(SIZE_BYTES, start=half_bytes, Repr_Digest=digest_of(b"other")) as sender:
        sender.send(half_bytes // 2)
        steps.wait_lying(steps.holder, half_bytes + half_bytes // 2)
        own_cluster.kill(*gone)
        sender.send(half_bytes // 2)
        assert sender.status() == 503
    own_cluster.restart(*gone)
    own_cluster.wait_healthy()
    assert steps.offset_once_told(steps.holder) == half_bytes
    asked = steps.ask_for_completion()
    assert (asked.status, asked.json) == (202, {"offset": half_bytes})
    assert steps.patch(half_bytes, SIZE_BYTES, Repr_Digest=digest_of(steps.content)).status == 204
    assert steps.stored(steps.holder) == steps.content


def assert_completed_by_its_rest_alone(steps: Steps) -> None:
    """Not by asking for it; by what is missing, with the digest of the content."""
    size_bytes = len(steps.content)
    asked = steps.ask_for_completion()
    assert (asked.status, asked.json["offset"] < size_bytes) == (202, True)
    assert steps.patch(asked.json["offset"], size_bytes, Repr_Digest=digest_of(steps.content)).status == 204
    assert steps.stored(steps.others[0]) == steps.content


@pytest.mark.parametrize("size_bytes", [SIZE_BYTES, None])
def test_content_of_a_client_that_left_before_its_end_is_not_completed_unchecked(
    cluster: Cluster, size_bytes: int | None
) -> None:
    steps = Steps(cluster, os.urandom(SIZE_BYTES), size_bytes=size_bytes)
    with steps.begin(SIZE_BYTES, **UNENDING) as sender:
        sender.send(SIZE_BYTES)
        steps.wait_lying(steps.holder, SIZE_BYTES)
    assert_completed_by_its_rest_alone(steps)


@pytest.mark.long
@pytest.mark.timeout(180)
def test_content_of_a_node_that_died_before_its_end_is_not_completed_unchecked(own_cluster: Cluster) -> None:
    size_bytes = 9_000_000  # enough for a chain, whose syncs come by time
    steps = Steps(own_cluster, os.urandom(size_bytes))
    with steps.begin(size_bytes, **UNENDING) as sender:
        sender.send(size_bytes - 1)
        steps.wait_lying(steps.holder, size_bytes - 1)
        time.sleep(REPORT_S + 0.5)  # from now on the next byte begins a sync
        sender.send(1)
        wait_until(lambda: steps.durable_bytes(steps.holder) >= size_bytes - 1, what="a sync", timeout_s=30)
        own_cluster.kill(steps.holder)
    own_cluster.restart(steps.holder)
    own_cluster.wait_healthy()
    assert_completed_by_its_rest_alone(steps)
