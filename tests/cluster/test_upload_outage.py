"""Content that turns out to be wrong while the coordinators cannot be told so."""

import os

import pytest

from tests.cluster.harness import Cluster
from tests.cluster.test_uploads import digest_of
from tests.cluster.upload_steps import Steps

SIZE_BYTES = 4_000_000


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
    asked = own_cluster.request(
        "PUT", steps.path, node=steps.holder, headers={"Content-Range": f"bytes */{SIZE_BYTES}"}
    )
    assert (asked.status, asked.json) == (202, {"offset": half_bytes})
    assert steps.patch(half_bytes, SIZE_BYTES, Repr_Digest=digest_of(steps.content)).status == 204
    assert steps.stored(steps.holder) == steps.content
