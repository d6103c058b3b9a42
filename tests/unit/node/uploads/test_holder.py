"""What the holder of an upload finds when it opens it: after a takeover, and after its disk lost bytes."""

import asyncio
import dataclasses
import hashlib
import threading
from pathlib import Path

import msgspec
import pytest

from ca.certificates import Authority
from ca.errors import Unavailable
from ca.identity import Role
from ca.tls import Peer
from metadata.model.records import Caller, UploadRecord
from metadata.protocol.calls import AnyCall, ProposeCall
from metadata.protocol.commands import OpenSession
from node.diskio.executor import LONG_JOBS_MAX
from node.uploads import progress
from node.uploads.holder import UploadHolder
from node.uploads.progress import Overtaken
from node.uploads.succession import give_up, has_prefix, is_reachable
from tests.unit.peer_nodes import Node, introduce
from tests.unit.peer_ports import connected, serving
from tests.unit.upload_records import CONTENT, UUID, record_of

OTHER = "0199c5a2-0000-7000-8000-000000000002"
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
    record = record_of("n2", "n3", "n1", offset_bytes=len(CONTENT), size_bytes=len(CONTENT))
    holder = UploadHolder(node.services, ANYBODY, record)
    try:
        await holder.open()
        assert (holder.file.finished is not None, holder.file.epoch) == (True, 1)
        blob = await node.services.disk.run(holder.file.finish)
        assert await node.services.replication._copy_to(["n3", "n1"], blob) == ["n3", "n1"]
    finally:
        await holder.close()


async def test_piece_whose_checksum_is_not_known_yet_waits_for_no_member(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is: members are sent nothing of it, so they cannot come closer."""
    monkeypatch.setattr(progress, "BEHIND_BYTES_MAX", len(CONTENT) // 4)
    holder = UploadHolder(nodes[0].services, ANYBODY, record_of("n1", "n2", "n3", offset_bytes=0, epoch=0))

    def write() -> None:
        holder.file.append(CONTENT)
        holder.note_written()

    try:
        await holder.open()
        holder.file.withhold()
        await nodes[0].services.disk.run(write)
        await asyncio.sleep(0)  # the chain begins
        assert holder._progress.is_running
        async with asyncio.timeout(5):
            await holder.keep_up()
    finally:
        await holder.close()


async def test_what_an_older_epoch_left_may_be_longer_than_what_was_declared_since(nodes: list[Node]) -> None:
    services = nodes[0].services
    left = services.uploads.open(UUID, None)
    left.append(CONTENT)
    left.sync()
    left.close()
    holder = UploadHolder(
        services, ANYBODY, record_of("n1", "n2", "n3", offset_bytes=0, epoch=2, size_bytes=10)
    )
    try:
        await holder.open()
        assert (holder.file.offset, holder.file.size_bytes, holder.file.epoch) == (0, 10, 2)
    finally:
        await holder.close()


@pytest.mark.parametrize("removed", [True, False])
async def test_member_that_was_removed_is_not_waited_for(nodes: list[Node], removed: bool) -> None:
    """Of a holder that has lost what was acknowledged: nobody else has it, or somebody may."""
    introduce(nodes, known=nodes[:2] if removed else None)
    await nodes[2].listener.close()
    giving_up = give_up(nodes[0].services, ANYBODY, record_of("n1", "n2", "n3", offset_bytes=1000))
    if removed:
        assert not await giving_up
    else:
        with pytest.raises(Unavailable):
            await giving_up


async def test_node_that_has_lost_the_leader_goes_on_with_nothing(nodes: list[Node]) -> None:
    """It answers, and could tell the log of nothing: neither as the holder nor as its successor."""
    services, record = nodes[0].services, record_of("n1", "n2", "n3", offset_bytes=0)
    assert await is_reachable(services, "n2")
    assert await has_prefix(services, "n2", record)
    nodes[1].services.api.view._leader_confirmed_at = float("-inf")
    assert not await is_reachable(services, "n2")
    assert await has_prefix(services, "n2", record) is None


@pytest.mark.parametrize(
    ("answer", "is_ours"),
    [
        (record_of("n1", "n2", "n3", offset_bytes=0, epoch=0, size_bytes=10), True),
        (record_of("n2", "n3", "n1", offset_bytes=0, epoch=1, size_bytes=10), False),
        (record_of("n1", "n2", "n3", offset_bytes=0, epoch=2, size_bytes=10), False),
        (record_of(offset_bytes=0, epoch=0, size_bytes=10), False),
    ],
    ids=["held", "taken over", "taken over and back", "ended"],
)
async def test_answer_of_the_log_is_heeded_only_while_the_upload_is_ours(
    nodes: list[Node], tmp_path: Path, peer_authority: Authority, answer: UploadRecord, is_ours: bool
) -> None:
    async def handle(_peer: Peer, call: AnyCall) -> bytes:
        assert isinstance(call, ProposeCall)
        return msgspec.msgpack.encode(1 if isinstance(call.command, OpenSession) else answer)

    async with (
        serving("c1", handle, tmp_path, peer_authority) as coordinator,
        connected("n9", [coordinator], tmp_path, peer_authority, role=Role.NODE) as metadata,
    ):
        services = nodes[0].services
        services = dataclasses.replace(services, api=dataclasses.replace(services.api, metadata=metadata))
        holder = UploadHolder(services, ANYBODY, record_of("n1", "n2", "n3", offset_bytes=0, epoch=0))
        try:
            await holder.open()
            if is_ours:
                await holder.declare(10)
            else:
                with pytest.raises(Overtaken):
                    await holder.declare(10)
            assert (holder.record == answer, holder.file.size_bytes == 10) == (is_ours, is_ours)
        finally:
            await holder.close()


async def test_uploads_that_are_hashed_anew_leave_threads_to_others(nodes: list[Node]) -> None:
    """One user may have many, each of any size, and ask for all of them at once."""
    services, release = nodes[0].services, threading.Event()
    upload = services.uploads.open(UUID, None)
    upload.append(CONTENT)
    upload.sync()
    upload.close()
    record = record_of("n1", offset_bytes=len(CONTENT))
    long = [asyncio.create_task(services.disk.run_long(release.wait, 20)) for _ in range(LONG_JOBS_MAX)]
    kept = UploadHolder(services, ANYBODY, record)
    async with asyncio.timeout(10):
        await kept.open()  # nothing of it is read
        await kept.close()
    services.uploads.close()
    hashed = UploadHolder(services, ANYBODY, record)
    opening = asyncio.create_task(hashed.open())
    async with asyncio.timeout(10):
        small = UploadHolder(
            services, ANYBODY, msgspec.structs.replace(record, file_uuid=OTHER, offset_bytes=0)
        )
        await small.open()
        await small.close()
    _, waiting = await asyncio.wait({opening}, timeout=1.0)  # a hundred times what it takes with a thread
    assert waiting
    release.set()
    await opening
    assert hashed.file.sha256 == SHA256
    await hashed.close()
    await asyncio.gather(*long)
