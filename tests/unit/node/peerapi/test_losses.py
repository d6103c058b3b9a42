"""Losses that a worker can only keep in memory reach the first one, which serves them no more either."""

import asyncio
import dataclasses
import os
from pathlib import Path

import pytest

from node.peer.client import PeerFailed
from node.peerapi.losses import REPORT_LOSSES_MAX, loss_routes, report
from node.storage.blobs import BlobStore
from node.storage.damage import verify_blob
from node.storage.loss_notes import note_lost
from node.storage.out_of_service import Loss
from node.storage.segments import BlobDamaged, BlobMissing
from node.uploads.services import NodeServices, provide
from node.workers.siblings import Siblings
from tests.cluster.immutable import immutable
from tests.unit.peer_nodes import SHA256, Node
from web.app import Listener, new_application, serve_on


async def listening(services: NodeServices) -> Listener:
    app = new_application(loss_routes(), component="node")
    provide(app, services)
    return await serve_on(services.siblings.listening_socket(), app, peer=True)


async def test_loss_is_told_until_the_first_worker_has_it(nodes: list[Node], tmp_path: Path) -> None:
    node = nodes[0]
    first, second = (Siblings(number, 2, tmp_path / "run") for number in range(2))
    for worker in (first, second):
        await worker.start()
    theirs = dataclasses.replace(node.services, siblings=first)
    ours = dataclasses.replace(
        node.services, siblings=second, blobs=BlobStore(node.directory, is_leftover=lambda _: False)
    )
    node.store()
    node.damage(0)
    (node.directory / "lost").touch()  # no directory: no note can be taken
    with immutable(node.blob_path()):
        with pytest.raises(BlobDamaged):
            await verify_blob(ours.disk, ours.blobs, ours.metrics, SHA256)
        for number in range(REPORT_LOSSES_MAX):
            note_lost(ours.blobs, Loss(f"{number:064x}", "missing"))
        with pytest.raises(PeerFailed):
            await report(ours)
        assert len(ours.blobs.out_of_service.losses(1000)) == REPORT_LOSSES_MAX + 1
        theirs.blobs.open(SHA256).close()
        listener = await listening(theirs)
        await report(ours)
        told = theirs.blobs.out_of_service.losses(1000)
        assert [loss.reason for loss in told] == ["damaged", *["missing"] * REPORT_LOSSES_MAX]
        assert ours.blobs.out_of_service.losses(1000) == []
        for blobs in (ours.blobs, theirs.blobs):
            with pytest.raises(BlobMissing):
                blobs.open(SHA256)
    await listener.close()
    ours.blobs.close()
    for worker in (first, second):
        await worker.close()
    assert os.listdir(node.directory / "quarantine") == []


async def test_hung_first_worker_is_not_waited_for_for_ever(
    nodes: list[Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.peerapi.losses.ANSWER_TIMEOUT_S", 0.2)
    first, second = (Siblings(number, 2, tmp_path / "run") for number in range(2))
    for worker in (first, second):
        await worker.start()
    ours = dataclasses.replace(nodes[0].services, siblings=second)
    ours.blobs.out_of_service.note_loss(Loss(SHA256, "missing"))
    listening = first.listening_socket()  # and nobody accepts
    with pytest.raises((PeerFailed, TimeoutError)):
        async with asyncio.timeout(30):
            await report(ours)
    assert len(ours.blobs.out_of_service.losses(9)) == 1
    listening.close()
    for worker in (first, second):
        await worker.close()
