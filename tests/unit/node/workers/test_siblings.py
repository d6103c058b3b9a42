"""Which worker an upload belongs to, and how workers reach each other."""

import asyncio
import stat
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from node.peer.client import PeerFailed, pieces
from node.storage.blob_files import INCOMING
from node.storage.blobs import BlobStore
from node.workers.siblings import Siblings, owner_of
from web.app import Listener, new_application, serve_on


def test_every_upload_has_one_owner_and_all_workers_have_a_share() -> None:
    uuids = [str(uuid.UUID(int=number << 64 | 7)) for number in range(3000)]
    shares = Counter(owner_of(file_uuid, 3) for file_uuid in uuids)
    assert set(shares) == {0, 1, 2}
    assert min(shares.values()) > 800
    workers = [Siblings(number, 3, Path("unused")) for number in range(3)]
    for file_uuid in uuids:
        assert [worker.owner(file_uuid) for worker in workers].count(None) == 1


def test_owner_is_the_same_in_every_release() -> None:
    assert owner_of("01a1ff5e-37c6-7115-bdd8-fea311f85ff5", 64) == 46


def test_single_process_owns_everything() -> None:
    assert Siblings().owner(str(uuid.uuid4())) is None
    assert Siblings().others == ()


async def listen(worker: Siblings, text: str) -> Listener:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=f"{text} {request.path_qs} {await request.text()}")

    app = new_application([web.route("*", "/{tail:.*}", answer)], component="node")
    return await serve_on(worker.listening_socket(), app, peer=True)


async def ask(worker: Siblings, number: int, patience_s: float = 0.0) -> str:
    async def body() -> AsyncIterator[bytes]:
        yield b"body"

    request = worker.request(number, "PUT", "/a?b=c", body=body(), patience_s=patience_s)
    async with request as answer:
        return b"".join([piece async for piece in pieces("worker", answer)]).decode()


async def test_workers_reach_each_other_below_a_long_path_that_others_cannot_enter(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 40)
    directory.mkdir()
    first, second = (Siblings(number, 2, directory / "run") for number in range(2))
    for worker in (first, second):
        await worker.start()
    assert stat.S_IMODE((directory / "run").stat().st_mode) == 0o700
    listeners = [await listen(first, "first"), await listen(second, "second")]
    assert await ask(first, 1) == "second /a?b=c body"
    assert await ask(second, 0) == "first /a?b=c body"
    for listener in listeners:
        await listener.close()
    for worker in (first, second):
        await worker.close()


async def test_worker_that_is_being_started_is_waited_for_and_one_that_is_not_there_fails(
    tmp_path: Path,
) -> None:
    first, second, third = (Siblings(number, 3, tmp_path / "run") for number in range(3))
    await first.start()
    with pytest.raises(PeerFailed):
        await ask(first, 1)
    asking = asyncio.create_task(ask(first, 1, patience_s=60))
    await second.start()
    listener = await listen(second, "second")
    assert await asking == "second /a?b=c body"
    await listener.close()
    again = await listen(second, "again")  # in place of the socket that was left
    await third.start()
    assert await ask(third, 1) == "again /a?b=c body"
    await again.close()
    for worker in (first, second, third):
        await worker.close()


async def test_unknown_worker_is_not_called(tmp_path: Path) -> None:
    first = Siblings(0, 2, tmp_path / "run")
    await first.start()
    for number in (0, 2, -1):
        with pytest.raises(PeerFailed):
            await ask(first, number)
    await first.close()


def test_starting_worker_removes_what_it_left_itself_and_nothing_of_the_others(tmp_path: Path) -> None:
    workers = [Siblings(number, 2, tmp_path / "run") for number in range(2)]
    uuids = [next(u for u in map(str, iter(uuid.uuid4, None)) if owner_of(u, 2) == n) for n in range(2)]
    stores = [BlobStore(tmp_path / "data", maker=worker.maker) for worker in workers]
    left = []
    for store, file_uuid in zip(stores, uuids, strict=True):
        left.append({store.write_incoming(b"half"), INCOMING + file_uuid})
        (tmp_path / "data" / "uploads" / (INCOMING + file_uuid)).mkdir()
    second = workers[1]
    BlobStore(tmp_path / "data", maker=second.maker, is_leftover=second.is_leftover).close()
    assert {path.name for path in (tmp_path / "data" / "uploads").iterdir()} == left[0]
    BlobStore(tmp_path / "data", is_leftover=workers[0].is_leftover).close()
    assert not list((tmp_path / "data" / "uploads").iterdir())
    for store in stores:
        store.close()
