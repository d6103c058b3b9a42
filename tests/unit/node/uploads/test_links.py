"""Links between members of a chain, over real TLS: what a member never gives up on the way to agreement."""

import asyncio
import dataclasses
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import Counter

from ca.errors import Conflict, InvalidRequest
from node.diskio import pagecache
from node.peer.client import PeerFailed
from node.staging.upload_file import UploadFile
from node.uploads import chain_link
from node.uploads.chain_link import OFFSET_HEADER, Link, LinkFences, LinkSource, LinkTerms, next_fencing_token
from tests.unit.peer_nodes import Node
from tests.unit.upload_records import fill

UUID = "0199c5a2-0000-7000-8000-000000000001"
ACKNOWLEDGED = os.urandom(3_000_000)
MORE = os.urandom(500_000)


@contextmanager
def upload_at(node: Node, content: bytes, epoch: int = 0) -> Iterator[UploadFile]:
    """The upload on a node's disk, with these bytes durable."""
    upload = node.services.uploads.open(UUID, None)
    try:
        upload.append(content)
        upload.sync()
        upload.enter_epoch(epoch)
        yield upload
    finally:
        upload.close()


def store(node: Node, content: bytes, epoch: int = 0) -> None:
    with upload_at(node, content, epoch):
        pass


def held(node: Node) -> bytes:
    return (node.directory / "uploads" / UUID / "data").read_bytes()


async def agree(
    node: Node,
    member: str,
    *,
    epoch: int = 0,
    limit: int = 0,
    fencing_token: str = "",
    is_relayed: bool = False,
) -> tuple[int, str]:
    """Status and offset of the answer to the question that begins a link."""
    terms = LinkTerms(UUID, epoch, with_md5=False, fencing_token=fencing_token, is_relayed=is_relayed)
    path = terms.path("agree", limit=str(limit))
    async with node.services.peers.request(member, "POST", path) as answer:
        return answer.status, answer.headers.get(OFFSET_HEADER, "")


@pytest.mark.parametrize("name", ["acknowledged", "proposed"])
async def test_member_behind_one_that_lacks_acknowledged_bytes_keeps_its_own(
    nodes: list[Node], name: str
) -> None:
    middle, last = nodes[1], nodes[2]
    store(last, ACKNOWLEDGED)
    sent = middle.services.metrics.replica_bytes.labels("sent")
    with upload_at(middle, b"") as upload:
        source = LinkSource(middle.services.disk, upload)
        laying = link_to_last(middle, source, sent, **{name: len(ACKNOWLEDGED)})
        running = asyncio.create_task(laying.run())
        await until_answered(last)
        assert held(last) == ACKNOWLEDGED
        upload.append(ACKNOWLEDGED)  # the middle catches up, and gets what is new
        source.move(upload.offset, (upload.offset, upload.sha256))
        upload.append(MORE)
        source.move(upload.offset)
        source.end()
        await running
        source.close()
    assert laying.durable == {"n3": len(ACKNOWLEDGED + MORE)}
    assert held(last) == ACKNOWLEDGED + MORE
    assert sent._value.get() == len(MORE)  # nothing of what it had was dropped and sent again


async def test_member_with_other_bytes_starts_over_once_that_is_known(nodes: list[Node]) -> None:
    middle, last = nodes[1], nodes[2]
    store(last, bytes(len(ACKNOWLEDGED)))
    with upload_at(middle, b"") as upload:
        source = LinkSource(middle.services.disk, upload)
        sent = middle.services.metrics.replica_bytes.labels("sent")
        laying = link_to_last(middle, source, sent, acknowledged=len(ACKNOWLEDGED))
        running = asyncio.create_task(laying.run())
        await until_answered(last)
        upload.append(ACKNOWLEDGED)
        source.move(upload.offset)
        source.end()
        await running
        source.close()
    assert held(last) == ACKNOWLEDGED


async def test_what_the_page_cache_has_not_is_read_from_the_disk(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagecache, "_NOWAIT", 0)  # no file system that tells: the kernel evicts when it likes
    middle, last = nodes[1], nodes[2]
    content = os.urandom(2_000_001)
    with upload_at(middle, content) as upload:
        source = LinkSource(middle.services.disk, upload)
        assert not pagecache.read_cached(source._fd, 1_000_000, 65536)
        source.end()
        await link_to_last(middle, source, middle.services.metrics.replica_bytes.labels("sent")).run()
        source.close()
    assert held(last) == content


async def test_member_whose_disk_hangs_at_the_end_is_given_up(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_link, "END_S", 0.6)
    goes_on = threading.Event()

    def hang(_descriptor: int) -> None:
        goes_on.wait()

    hanging = dataclasses.replace(nodes[2].services.blobs.disk, fdatasync=hang)
    monkeypatch.setattr(nodes[2].services.blobs, "disk", hanging)
    with upload_at(nodes[1], MORE) as upload:
        source = LinkSource(nodes[1].services.disk, upload)
        source.end()
        running = link_to_last(nodes[1], source, nodes[1].services.metrics.replica_bytes.labels("sent"))
        try:
            with pytest.raises(PeerFailed, match="accepts no bytes"):
                await running.run()
        finally:
            goes_on.set()
            source.close()
    assert running.durable == {"n3": 0}


async def test_member_whose_disk_fills_while_bytes_come_says_so(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    last, more = nodes[2], os.urandom(1 << 20)
    full = threading.Event()
    fill(last, monkeypatch, is_full=full.is_set)
    with upload_at(nodes[1], MORE) as upload:
        source = LinkSource(nodes[1].services.disk, upload)
        link = link_to_last(nodes[1], source, nodes[1].services.metrics.replica_bytes.labels("sent"))
        running = asyncio.create_task(link.run())
        async with asyncio.timeout(10):
            while not link.durable:  # a line has come: the status of the answer can say nothing any more
                await asyncio.sleep(0.01)
        full.set()
        upload.append(more)
        source.move(upload.offset)
        with pytest.raises(PeerFailed, match="has no room") as failed:
            await running
        source.close()
    assert failed.value.is_full
    assert MORE[: link.durable["n3"]] == held(last)


def link_to_last(
    middle: Node, source: LinkSource, sent: Counter, *, acknowledged: int = 0, proposed: int = 0
) -> Link:
    """From the middle of the chain to its end."""
    return Link(
        middle.services.peers,
        source,
        LinkTerms(UUID, 0, with_md5=False, acknowledged_offset=acknowledged, proposed_offset=proposed),
        ["n3"],
        on_change=lambda: None,
        sent=sent,
    )


async def test_link_that_a_newer_one_went_around_takes_nothing_back(nodes: list[Node]) -> None:
    store(nodes[2], ACKNOWLEDGED)
    older, newer = next_fencing_token(), next_fencing_token()
    assert await agree(nodes[0], "n3", limit=len(ACKNOWLEDGED), fencing_token=newer) == (
        200,
        str(len(ACKNOWLEDGED)),
    )
    status, _ = await agree(nodes[1], "n3", limit=1000, fencing_token=older)
    assert status == 409
    assert held(nodes[2]) == ACKNOWLEDGED


async def test_link_that_a_newer_one_went_around_takes_nothing_back_from_a_member_that_was_restarted(
    nodes: list[Node],
) -> None:
    store(nodes[2], ACKNOWLEDGED)
    older, newer = next_fencing_token(), next_fencing_token()
    status, _ = await agree(
        nodes[1], "n3", limit=1000, fencing_token=older, is_relayed=True
    )  # it knows no number
    assert status == 409
    assert held(nodes[2]) == ACKNOWLEDGED
    assert await agree(nodes[0], "n3", limit=len(ACKNOWLEDGED), fencing_token=newer) == (
        200,
        str(len(ACKNOWLEDGED)),
    )
    assert (await agree(nodes[1], "n3", limit=1000, fencing_token=older, is_relayed=True))[0] == 409
    latest = next_fencing_token()  # the chain of the next request
    status, _ = await agree(nodes[1], "n3", limit=len(ACKNOWLEDGED), fencing_token=latest, is_relayed=True)
    assert status == 200


async def test_first_link_of_an_upload_and_of_an_epoch_may_come_along_the_chain(nodes: list[Node]) -> None:
    assert await agree(nodes[1], "n3", fencing_token=next_fencing_token(), is_relayed=True) == (200, "0")
    store(nodes[2], ACKNOWLEDGED)
    laid_now, limit = next_fencing_token(), len(ACKNOWLEDGED)
    status, _ = await agree(nodes[1], "n3", epoch=1, limit=limit, fencing_token=laid_now, is_relayed=True)
    assert status == 200


async def test_link_of_an_epoch_that_ended_while_it_waited_takes_nothing_back(nodes: list[Node]) -> None:
    store(nodes[2], ACKNOWLEDGED, epoch=1)
    locks = nodes[2].services.locks
    async with locks.lock(UUID, lambda: False, lambda: None):
        waiting = asyncio.create_task(agree(nodes[0], "n3", epoch=1, limit=1000))
        await until_asked(nodes[2])
        with upload_at(nodes[2], MORE, epoch=2):  # the next holder's
            pass
    assert (await waiting)[0] == 409
    assert held(nodes[2]) == ACKNOWLEDGED + MORE
    assert nodes[2].services.uploads.epoch(UUID) == 2


async def until_answered(node: Node) -> None:
    """Until a link's first question was."""
    while not node.services.locks.releases:
        await asyncio.sleep(0.01)


async def until_asked(node: Node) -> None:
    """Until somebody waits for the upload."""
    hold = node.services.locks._locks[UUID]
    while not hold.released._waiters:
        await asyncio.sleep(0.01)


def fencing_token(run: int, number: int) -> str:
    return f"{run:016x}-{number}"


def test_older_link_of_a_run_is_refused_and_the_same_again_is_not() -> None:
    links = LinkFences()
    links.require_newest(UUID, 3, fencing_token(1, 5))
    links.require_newest(UUID, 3, fencing_token(1, 5))
    with pytest.raises(Conflict):
        links.require_newest(UUID, 3, fencing_token(1, 4))
    links.require_newest(UUID, 3, fencing_token(1, 6))


def test_run_that_another_followed_is_over_for_this_epoch_only() -> None:
    links = LinkFences()
    links.require_newest(UUID, 3, fencing_token(1, 5))
    links.require_newest(UUID, 3, fencing_token(2, 1))
    with pytest.raises(Conflict):
        links.require_newest(UUID, 3, fencing_token(1, 6))
    links.require_newest(UUID, 4, fencing_token(1, 7))
    with pytest.raises(Conflict):
        links.require_newest(UUID, 3, fencing_token(2, 2))


def test_what_no_link_is_laid_for_passes() -> None:
    links = LinkFences()
    links.require_newest(UUID, 3, fencing_token(1, 5))
    links.require_newest(UUID, 3, "")


@pytest.mark.parametrize("name", ["5", "x-5", fencing_token(1, 5) + "\n", fencing_token(1, 10**15)])
def test_name_of_a_link_is_checked(name: str) -> None:
    with pytest.raises(InvalidRequest):
        LinkFences().require_newest(UUID, 3, name)


def test_uploads_are_remembered_up_to_a_bound() -> None:
    links = LinkFences(uploads_max=2)
    for name in ("a", "b", "c"):
        links.require_newest(name, 0, fencing_token(1, 5))
    links.require_newest("a", 0, fencing_token(1, 4))  # forgotten
    with pytest.raises(Conflict):
        links.require_newest("c", 0, fencing_token(1, 4))


async def test_member_that_had_finished_the_content_keeps_what_is_acknowledged_of_it(
    nodes: list[Node],
) -> None:
    with upload_at(nodes[2], ACKNOWLEDGED + MORE) as upload:
        upload.finish()
    terms = LinkTerms(UUID, 1, with_md5=False, acknowledged_offset=len(ACKNOWLEDGED))
    path = terms.path("agree", limit=str(len(ACKNOWLEDGED)))  # the next holder's
    async with nodes[0].services.peers.request("n3", "POST", path) as answer:
        assert answer.headers[OFFSET_HEADER] == str(len(ACKNOWLEDGED))
    assert held(nodes[2]) == ACKNOWLEDGED
    assert nodes[2].services.uploads.durable_offset(UUID) == len(ACKNOWLEDGED)


async def test_hash_of_what_is_agreed_on_is_that_of_the_bytes(nodes: list[Node]) -> None:
    store(nodes[2], ACKNOWLEDGED)
    path = LinkTerms(UUID, 0, with_md5=False).path("agree", limit="1000")
    async with nodes[0].services.peers.request("n3", "POST", path) as answer:
        assert answer.headers["Upload-Sha256"] == hashlib.sha256(ACKNOWLEDGED[:1000]).hexdigest()
