"""Of one upload: its content, its record at some offset, and its file on a node."""

import dataclasses
import errno
import hashlib
import os
from collections.abc import Callable

import pytest

from metadata.model.records import BACKUP, UploadRecord
from node.diskio.durable import RECORD_BYTES, Octets
from node.staging.upload_file import UploadFile
from node.uploads.chain import Chain
from node.uploads.chain_link import LinkSource, LinkTerms
from tests.unit.peer_nodes import Node

UUID = "0199c5a2-0000-7000-8000-000000000001"
CONTENT = os.urandom(6_000_000)


def record_of(
    *placement: str, offset_bytes: int, epoch: int = 1, size_bytes: int | None = None
) -> UploadRecord:
    """Of CONTENT, or its beginning."""
    return UploadRecord(
        file_uuid=UUID,
        status="uploading",
        placement=list(placement),
        size_bytes=size_bytes,
        expected_sha256="",
        blob_sha256="",
        offset_bytes=offset_bytes,
        expires_at_ms=1,
        kind=BACKUP,
        as_of=5,
        epoch=epoch,
        prefix_sha256=hashlib.sha256(CONTENT[:offset_bytes]).hexdigest() if offset_bytes else "",
    )


def store_upload(node: Node) -> None:
    """All of CONTENT lies there, durably."""
    with node.services.uploads.open(UUID, None) as upload:
        upload.append(CONTENT)
        upload.sync()


def fill(node: Node, monkeypatch: pytest.MonkeyPatch, *, is_full: Callable[[], bool] = lambda: True) -> None:
    """The disk takes nothing new once it `is_full`; what lies already can be written over."""

    def pwrite(descriptor: int, buffer: Octets, offset: int) -> int:
        if is_full() and len(buffer) > RECORD_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(descriptor, buffer, offset)

    disk = dataclasses.replace(node.services.blobs.disk, pwrite=pwrite)
    monkeypatch.setattr(node.services.blobs, "disk", disk)


def chain_of_all(node: Node, upload: UploadFile, *, ends: bool = True) -> Chain:
    """From n1 to n2 and n3, on its way: nothing comes behind what lies on n1, if it `ends`."""
    services = node.services
    chain = Chain(
        node_id="n1",
        peers=services.peers,
        view=services.api.view,
        metrics=services.metrics,
        source=LinkSource(services.disk, upload),
        terms=LinkTerms(UUID, 0, with_md5=False),
        placement=["n1", "n2", "n3"],
    )
    chain.start()
    if ends:
        chain.end()
    return chain
