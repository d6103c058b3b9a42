"""What the holder of an upload finds when it opens it: after a takeover, and after its disk lost bytes."""

import hashlib
import os

from coordinator.records import BACKUP, Caller, UploadRecord
from node.holding import Holding
from tests.unit.peer_nodes import Node

UUID = "0199c5a2-0000-7000-8000-000000000001"
CONTENT = os.urandom(6_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
ANYBODY = Caller("anybody", 1)


async def test_member_that_has_put_the_content_into_place_completes_it_as_the_holder(
    nodes: list[Node],
) -> None:
    """The holder died between the end of its members and the commit."""
    node = nodes[1]
    upload = node.services.uploads.open(UUID, None)
    upload.append(CONTENT)
    upload.sync()
    upload.finish(SHA256)
    upload.close()
    record = UploadRecord(
        file_uuid=UUID,
        status="uploading",
        placement=["n2", "n3", "n1"],
        size_bytes=len(CONTENT),
        expected_sha256="",
        blob_sha256="",
        offset_bytes=len(CONTENT),
        expires_at_ms=1,
        kind=BACKUP,
        as_of=5,
        epoch=1,
        prefix_sha256=SHA256,
    )
    holding = Holding(node.services, ANYBODY, record)
    try:
        await holding.open()
        assert (holding.upload.finished is not None, holding.upload.epoch) == (True, 1)
        blob = await node.services.disk.run(holding.upload.finish)
        assert await node.services.replication._copy_to(["n3", "n1"], blob) == ["n3", "n1"]
    finally:
        await holding.close()
