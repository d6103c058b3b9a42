"""Many small blobs in one request: whatever is sent, none is taken under a name that is not its hash.

To real peers, over real TLS: what waits goes together, and nothing waits without a bound.
"""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from ca.certificates import Authority
from ca.errors import Internal
from node.peer.client import STALL_TIMEOUT_S, PeerFailed
from node.peerapi.blobs import transfer_routes
from node.storage.segments import FinishedBlob
from node.uploads import small_copies
from node.uploads.small_copies import (
    PATH,
    REQUEST_BLOBS_MAX,
    REQUESTS_MAX,
    decode_small_blobs,
    encode_small_blobs,
)
from runtime.time_limits import SPARE_S
from tests.unit import peer_nodes
from tests.unit.node.peer.test_silence import hung
from tests.unit.peer_nodes import Node, introduce, running_node

SIZE_BYTES = 1000
SENT_BYTES = len(encode_small_blobs([("0" * 64, bytes(SIZE_BYTES))]))  # of one of them in a request


def small(count: int) -> list[tuple[str, bytes]]:
    """Blobs of SIZE_BYTES, each another one."""
    contents = [number.to_bytes(4, "big") * (SIZE_BYTES // 4) for number in range(count)]
    return [(hashlib.sha256(content).hexdigest(), content) for content in contents]


@dataclass
class Sender:
    """A node with others that it sends to. `arrived`: how many blobs came in each request; they are taken
    once `go` is set.
    """

    node: Node
    peers: dict[str, Node] = field(default_factory=dict)
    arrived: asyncio.Queue[int] = field(default_factory=asyncio.Queue)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, *blobs: tuple[str, bytes], to: str = "n2") -> list[asyncio.Future[None]]:
        return [self.node.services.replication.small_copies.put(to, *blob) for blob in blobs]

    def counts(self) -> list[int]:
        """Of the requests that have come and that nobody has asked for yet."""
        return [self.arrived.get_nowait() for _ in range(self.arrived.qsize())]

    def lacks(self, *blobs: tuple[str, bytes], at: str = "n2") -> list[str]:
        return [name for name, _ in blobs if not self.peers[at].services.blobs.has(name)]


@pytest.fixture
async def sender(
    tmp_path: Path, peer_authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Sender]:
    routes = transfer_routes()
    [route] = [route for route in routes if route.path == PATH]
    others = [each for each in routes if each is not route]
    waiting = asyncio.Queue[int]()
    go = asyncio.Event()

    async def take(request: web.Request) -> web.StreamResponse:
        waiting.put_nowait((request.content_length or 0) // SENT_BYTES)
        await go.wait()
        return await route.handler(request)

    monkeypatch.setattr(peer_nodes, "transfer_routes", lambda: [*others, web.post(PATH, take)])
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        started = [
            await stack.enter_async_context(running_node(name, tmp_path / name, peer_authority))
            for name in ("n1", "n2", "n3")
        ]
        introduce(started)
        for node in started:
            node.services.blobs.packed.takes_new = lambda: True
        yield Sender(started[0], {node.services.node_id: node for node in started[1:]}, waiting, go)
        go.set()


def blobs(count: int) -> list[tuple[str, bytes]]:
    rand = random.Random(count)
    contents = [rand.randbytes(rand.choice((0, 1, 100, 5000))) for _ in range(count)]
    return [(hashlib.sha256(content).hexdigest(), content) for content in contents]


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_blobs_arrive_as_they_were_sent(count: int) -> None:
    assert decode_small_blobs(encode_small_blobs(blobs(count))) == blobs(count)


def test_body_that_is_cut_off_is_refused_wherever_that_is() -> None:
    body = encode_small_blobs(blobs(3))
    ends = {len(encode_small_blobs(blobs(3)[:count])) for count in range(4)}
    for stop in range(len(body)):
        if stop not in ends:
            with pytest.raises(ValueError, match="cut off"):
                decode_small_blobs(body[:stop])


def test_body_with_any_other_bit_is_refused() -> None:
    body, rand = encode_small_blobs(blobs(3)), random.Random(1)
    for at in (0, 31, 32, 35, 36, *rand.sample(range(len(body)), 50)):
        damaged = bytearray(body)
        damaged[at] ^= 1 << rand.randrange(8)
        with pytest.raises(ValueError, match="cut off"):
            decode_small_blobs(bytes(damaged))


async def test_blobs_that_come_at_once_go_in_few_requests(sender: Sender) -> None:
    sender.go.set()
    blobs = small(100)
    await asyncio.gather(*sender.put(*blobs))
    counts = sender.counts()
    assert sum(counts) == 100
    assert len(counts) <= REQUESTS_MAX
    assert sender.lacks(*blobs) == []
    packed = sender.peers["n2"].services.blobs.packed
    assert all(packed.find(name) is not None for name, _ in blobs)


async def test_what_comes_while_requests_are_under_way_goes_with_the_next(sender: Sender) -> None:
    (*first,) = blobs = small(REQUESTS_MAX + REQUEST_BLOBS_MAX + 44)
    waiting = list[asyncio.Future[None]]()
    for blob in first[:REQUESTS_MAX]:
        waiting += sender.put(blob)
        assert await sender.arrived.get() == 1
    for blob in blobs[REQUESTS_MAX:]:
        waiting += sender.put(blob)
        await asyncio.sleep(0)  # a request of its own would begin now
    sender.go.set()
    await asyncio.gather(*waiting)
    assert sorted(sender.counts()) == [44, REQUEST_BLOBS_MAX]
    assert sender.lacks(*blobs) == []


async def test_blobs_beyond_what_may_wait_for_a_node_are_refused(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_copies, "WAITING_BYTES_MAX", 10 * SIZE_BYTES)
    blobs, waiting = small(REQUESTS_MAX + 11), list[asyncio.Future[None]]()
    for blob in blobs[:REQUESTS_MAX]:
        waiting += sender.put(blob)
        assert await sender.arrived.get() == 1  # it waits no more
    waiting += sender.put(*blobs[REQUESTS_MAX:-1])
    [refused] = sender.put(blobs[-1])
    assert refused.done()
    with pytest.raises(PeerFailed, match="n2: is too slow"):
        await refused
    [elsewhere] = sender.put(blobs[-1], to="n3")
    sender.go.set()
    await asyncio.gather(elsewhere, *waiting)
    assert sender.lacks(*blobs) == [blobs[-1][0]]
    assert sender.lacks(blobs[-1], at="n3") == []
    await asyncio.gather(*sender.put(blobs[-1]))
    assert sender.lacks(*blobs) == []


async def test_what_this_disk_refuses_is_told_while_a_peer_hangs(nodes: list[Node]) -> None:
    [(sha256, content)] = small(1)
    here: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    here.set_exception(Internal("The disk refused."))
    spread_small = nodes[0].services.replication.spread_small
    async with hung(nodes, "n2"), asyncio.timeout(SPARE_S / 2):  # a peer that hangs has twice as long
        with pytest.raises(Internal):
            await spread_small(FinishedBlob(sha256, len(content)), content, ["n1", "n2"], here)


async def test_peer_that_never_answers_is_given_up_soon(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_copies, "ANSWER_S", 0.2)
    services = nodes[0].services
    async with hung(nodes, "n2"):
        copies = [services.replication.small_copies.put("n2", *blob) for blob in small(20)]
        async with asyncio.timeout(STALL_TIMEOUT_S / 2):  # as long as other requests are waited for
            failures = await asyncio.gather(*copies, return_exceptions=True)
        assert all(isinstance(failure, PeerFailed) and failure.is_silent for failure in failures)
        assert len(set(map(id, failures))) == len(copies)
        assert "n2" in services.peers.silent
