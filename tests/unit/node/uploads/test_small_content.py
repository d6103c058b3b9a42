"""Small content is recorded by who holds its upload, and by nobody else: real nodes and state machine."""

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from ca.certificates import Authority
from ca.errors import Conflict, Unavailable
from metadata.model.records import ContentRecord, UploadRecord
from metadata.protocol import commands
from node.uploads.completion import complete_small
from tests.unit.logged_nodes import NAMES, LoggedNodes, logged_nodes
from tests.unit.state import ADMIN

UUID = "0199c5a2-0000-7000-8000-000000000001"
CONTENT = os.urandom(5000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
async def group(tmp_path: Path, peer_authority: Authority) -> AsyncIterator[LoggedNodes]:
    async with logged_nodes(tmp_path, peer_authority) as started:
        yield started


async def completed(
    group: LoggedNodes, number: int, record: UploadRecord, content: bytes = CONTENT
) -> ContentRecord:
    """By that node, from 0, with the upload as `record` has it."""
    sha256, services = hashlib.sha256(content).hexdigest(), group.nodes[number].services
    return await complete_small(services, ADMIN, record, content, sha256=sha256)


def take_over(group: LoggedNodes) -> UploadRecord:
    """Another node holds the upload from now on."""
    command = commands.TakeOverUpload(
        caller=ADMIN, file_uuid=UUID, holder="n1", successor="n2", epoch=0, offset_bytes=0
    )
    group.state.done(command)
    return group.upload(UUID)


async def test_content_is_recorded_on_the_nodes_that_have_it(group: LoggedNodes) -> None:
    made = await completed(group, 0, group.begin(UUID))
    assert (made.file.status, made.file.blob_sha256, made.replicas) == ("available", SHA256, list(NAMES))
    assert group.holders(SHA256) == list(NAMES)
    assert all(node.services.blobs.packed.find(SHA256) is not None for node in group.nodes)


async def test_node_that_was_taken_over_from_records_nothing(group: LoggedNodes) -> None:
    before = group.begin(UUID)
    after = take_over(group)
    for number, record in (
        (0, before),
        (0, after),  # as it is now, by who does not hold it
        (1, msgspec.structs.replace(after, epoch=before.epoch)),
    ):
        with pytest.raises(Unavailable):
            await completed(group, number, record, b"of before")
    stands = group.upload(UUID)
    assert (stands.status, stands.placement, stands.epoch) == ("pending", after.placement, after.epoch)
    made = await completed(group, 1, after)
    assert (made.file.status, made.file.blob_sha256) == ("available", SHA256)
    with pytest.raises(Conflict):
        await completed(group, 0, before, b"of before")


async def test_content_of_before_a_rewinding_is_not_recorded(group: LoggedNodes) -> None:
    """The same node holds the upload: a request of it that is still under way counts no more."""
    before = group.begin(UUID)
    command = commands.RewindUpload(
        caller=ADMIN,
        file_uuid=UUID,
        node_id="n1",
        epoch=0,
        offset_bytes=0,
        prefix_sha256=hashlib.sha256().hexdigest(),
    )
    group.state.done(command)
    with pytest.raises(Unavailable):
        await completed(group, 0, before, b"of before")
    assert group.upload(UUID).status == "pending"
    assert (await completed(group, 0, group.upload(UUID))).file.blob_sha256 == SHA256
