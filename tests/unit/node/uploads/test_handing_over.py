"""What a holder whose disk takes no more says to the log, and how much it sends a stranger."""

import dataclasses
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ca.certificates import Authority
from ca.identity import Role
from ca.tls import Peer
from metadata.model.records import BACKUP, Caller, UploadRecord
from metadata.protocol.calls import AnyCall, ProposeCall
from metadata.protocol.commands import OpenSession, RecordProgress, RewindUpload, TakeOverUpload
from node.uploads import succession
from node.uploads.holder import UploadHolder
from node.uploads.services import NodeServices
from node.uploads.succession import hand_over
from tests.unit.peer_nodes import Node
from tests.unit.peer_ports import connected, serving

CONTENT = os.urandom(1000)
ANYBODY = Caller("anybody", 1)
RECORD = UploadRecord(
    file_uuid="0199c5a2-0000-7000-8000-000000000001",
    status="uploading",
    placement=["n1", "n2", "n3"],
    size_bytes=None,
    expected_sha256="",
    blob_sha256="",
    offset_bytes=0,
    expires_at_ms=1,
    kind=BACKUP,
    as_of=5,
)


class Log:
    """Answers as the coordinators would while nothing else happens to this one upload."""

    def __init__(self, record: UploadRecord) -> None:
        self.record = record
        self.heard: list[object] = []

    async def handle(self, _peer: Peer, call: AnyCall) -> bytes:
        assert isinstance(call, ProposeCall)
        command, record = call.command, self.record
        if isinstance(command, OpenSession):
            return msgspec.msgpack.encode(1)
        self.heard.append(command)
        if isinstance(command, RewindUpload):
            record = msgspec.structs.replace(record, epoch=record.epoch + 1)
        elif isinstance(command, RecordProgress):
            record = msgspec.structs.replace(record, placement=command.placement or record.placement)
        else:
            assert isinstance(command, TakeOverUpload)
            others = [name for name in record.placement if name != command.successor]
            placement = [command.successor, *others]
            record = msgspec.structs.replace(record, placement=placement, epoch=record.epoch + 1)
        self.record = record
        return msgspec.msgpack.encode(record)


@asynccontextmanager
async def logged(node: Node, log: Log, directory: Path, authority: Authority) -> AsyncIterator[NodeServices]:
    """What the node works with, and this log in place of coordinators."""
    async with (
        serving("c1", log.handle, directory, authority) as coordinator,
        connected("n9", [coordinator], directory, authority, role=Role.NODE) as metadata,
    ):
        services = node.services
        yield dataclasses.replace(services, api=dataclasses.replace(services.api, metadata=metadata))


@pytest.mark.parametrize("is_proposed", [True, False])
async def test_report_that_got_no_answer_can_come_true_no_more_once_another_node_holds_the_upload(
    nodes: list[Node], tmp_path: Path, peer_authority: Authority, is_proposed: bool
) -> None:
    """It names bytes that the next holder does not have to have, as none of them is acknowledged."""
    log = Log(RECORD)
    async with logged(nodes[0], log, tmp_path, peer_authority) as services:
        if is_proposed:
            left = services.uploads.open(RECORD.file_uuid, None)
            left.append(CONTENT)
            left.sync()
            left.close()
        holder = UploadHolder(services, ANYBODY, RECORD)
        try:
            await holder.open()  # of the same epoch: what lies there may have been proposed
            assert await holder.hand_over() in ("n2", "n3")
        finally:
            await holder.close()
    *before, takeover = log.heard
    assert isinstance(takeover, TakeOverUpload)
    assert [type(command) for command in before] == ([RewindUpload] if is_proposed else [])
    assert (takeover.offset_bytes, takeover.epoch) == (0, 1 if is_proposed else 0)


@pytest.mark.parametrize(("bound", "sent"), [(1000, ["n3"]), (999, [])])
async def test_stranger_is_sent_no_more_than_the_bound(
    nodes: list[Node],
    tmp_path: Path,
    peer_authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    bound: int,
    sent: list[str],
) -> None:
    monkeypatch.setattr(succession, "SENT_BYTES_MAX", bound)
    await nodes[1].listener.close()  # so that no member has room
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    record = msgspec.structs.replace(RECORD, placement=["n1", "n2"], offset_bytes=1000, prefix_sha256=sha256)
    log, asked = Log(record), []

    async def send_to(node_id: str) -> bool:
        asked.append(node_id)
        return True

    async with logged(nodes[0], log, tmp_path, peer_authority) as services:
        successor = await hand_over(services, ANYBODY, record, send_to)
    assert (asked, successor) == (sent, "".join(sent))
    assert log.record.placement == ([*sent, "n1", "n2"] if sent else ["n1", "n2"])
