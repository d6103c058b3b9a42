"""Clients that store contents at the nodes, read them back and delete some; and what must not happen then.

What was acknowledged is there, whole, until its deletion is asked for. A refusal, a broken connection and
silence are no faults while things break; a wrong byte, a lost file and a fault of ours (500) are. Most
contents are small, so that nodes pack them. The large ones are versions of a few disks, so that they share
chunks, and that a delta of one is the next. Each comes from the seed by its number, to be stored again.
"""

import asyncio
import base64
import json
import random
import ssl
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import aiohttp

from ca.tls import client_context
from filestore_client.transfer.delta import BASE_FIELD, DELTA_TYPE
from node.packs.store import BLOB_BYTES_MAX
from tests.chaos.clients import Ledger
from tests.chaos.members import Member
from tests.file_ledger import GONE, File
from tests.seeded_content import SeededContent, even_by_logarithm

CLIENTS = 3
PAUSE_S_MAX = 0.4  # between two operations of one client: all share this machine's cores
KEPT_MAX = 250  # files; beyond, more are deleted than stored
LARGE_BYTES_MAX = 2 << 20
LARGE, AGAIN, AT_ONCE = 0.15, 0.1, 0.6  # of all that are stored
DELTAS = 0.5  # of those that have a version of the same disk before them
DISKS, BLOCK_BYTES = 4, 64 << 10
CHANGED = 0.1  # of the blocks of a disk, in each version
BOUNDARIES = (1, BLOB_BYTES_MAX, BLOB_BYTES_MAX + 1)  # sizes that come more often than by chance
REQUEST_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0
TRIES_MAX = 6
RETRY_S = 0.3
READERS = 8  # of everything, in the end
FINAL_TIMEOUT_S = 60.0
REFUSALS = frozenset({408, 423, 429, 503, 507})
FILES = "/api/v1/project-files"
_TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
_NO_CHECK_TIME = ssl.VerifyFlags(0x200000)  # X509_V_FLAG_NO_CHECK_TIME, which Python has no name for


class Content(SeededContent):
    """Within the bounds of small or of large ones, and at the boundaries more often than by chance."""

    @property
    def disk(self) -> int | None:
        """The disk that this is a version of; None if it is small."""
        return self.number % DISKS if self.size_bytes > BLOB_BYTES_MAX else None

    def bytes(self) -> bytes:
        """Made anew each time."""
        if self.disk is None:
            return super().bytes()
        content = bytearray(random.Random(f"{self.seed} disk {self.disk}").randbytes(self.size_bytes))
        dice = random.Random(f"{self.seed} bytes {self.number}")
        for start in range(0, self.size_bytes, BLOCK_BYTES):
            if dice.random() < CHANGED:
                content[start : start + 64] = dice.randbytes(len(content[start : start + 64]))
        return bytes(content)

    def _size(self, dice: random.Random) -> float:
        low, high = (BLOB_BYTES_MAX + 1, LARGE_BYTES_MAX) if dice.random() < LARGE else (1, BLOB_BYTES_MAX)
        even = round(even_by_logarithm(dice, low, high))
        return dice.choice(BOUNDARIES) if dice.random() < 0.1 else even


def delta_of(base: Content, content: Content) -> bytes:
    """What a client sends in place of the content if it refers to the base."""
    old, new, found = base.bytes(), content.bytes(), bytearray()
    for start in range(0, len(new), BLOCK_BYTES):
        block = new[start : start + BLOCK_BYTES]
        if old[start : start + len(block)] == block:
            found += struct.pack("<BQI", 1, start, len(block))
        else:
            found += struct.pack("<BI", 0, len(block)) + block
    return bytes(found)


@dataclass(frozen=True)
class Answer:
    """What a node answered. `offset`: how much of an upload is durable, -1 where it does not say."""

    status: int
    offset: int
    body: bytes


class Contents:
    """Everything that these clients share. `run` lets them work until `stop`."""

    def __init__(
        self,
        nodes: Mapping[str, Member],
        http: aiohttp.ClientSession,
        ledger: Ledger,
        dice: random.Random,
    ) -> None:
        self.kept: dict[str, File] = {}  # acknowledged, and nobody has asked for its deletion
        self.stored_count = 0
        self._deleted: list[File] = []
        self._nodes = nodes
        self._http = http
        self._ledger = ledger
        self._dice = dice
        self._seed = dice.getrandbits(32)
        self._contents: list[Content] = []
        self._is_over = False

    async def run(self) -> None:
        """Work until `stop`; every operation that was begun ends."""
        async with asyncio.TaskGroup() as group:
            for number in range(1, CLIENTS + 1):
                group.create_task(self._work(f"contents-{number}"))

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_over = True

    async def are_served(self) -> bool:
        """Whether every node says that it is ready."""
        answers = [await self._asked("GET", "/readyz", node) for node in self._nodes]
        return all(answer is not None and answer.status == 200 for answer in answers)

    async def read_everything(self) -> None:
        """Every content from every node, within FINAL_TIMEOUT_S; and nobody has what was deleted."""
        todo = [(node, stored) for stored in self.kept.values() for node in self._nodes]
        todo += [(self._any_node(), stored) for stored in self._deleted]
        give_up_at, left = self._ledger.now_s() + FINAL_TIMEOUT_S, iter(todo)
        async with asyncio.TaskGroup() as group:
            for number in range(1, READERS + 1):
                group.create_task(self._read_in_turn(f"reader-{number}", left, give_up_at))

    async def _read_in_turn(self, client: str, left: Iterator[tuple[str, File]], give_up_at: float) -> None:
        for node, stored in left:
            while not await self._read(client, node, stored):
                if self._ledger.now_s() > give_up_at:
                    self.fault(f"{stored.file_uuid} could not be read from {node} in the end")
                    return
                await asyncio.sleep(RETRY_S)

    async def _work(self, client: str) -> None:
        while not self._is_over:
            await self._one(client)
            await asyncio.sleep(self._dice.random() * PAUSE_S_MAX)

    async def _one(self, client: str) -> None:
        roll = self._dice.random()
        if not self.kept or roll < 0.4:
            self._count("store", is_done=await self._store(client))
            return
        stored = self.kept[self._dice.choice(sorted(self.kept))]
        if roll < (0.55 if len(self.kept) < KEPT_MAX else 0.9):
            self._count("remove", is_done=await self._remove(client, stored))
        else:
            self._count("fetch", is_done=await self._read(client, self._any_node(), stored))

    def _count(self, verb: str, *, is_done: bool) -> None:
        self._ledger.outcomes[f"{verb} {'ok' if is_done else 'given up'}"] += 1

    async def _store(self, client: str) -> bool:
        """A new file, by one request or by two; whether its content was acknowledged."""
        content = self._some_content()
        name = {"filename": f"{content.number}.bin", "project_id": "contents"}
        if self._dice.random() < AT_ONCE:
            fields = (f"{key} {base64.b64encode(text.encode()).decode()}" for key, text in name.items())
            told = {"Upload-Length": str(content.size_bytes), "Upload-Metadata": ",".join(fields)}
            created = await self.ask(client, "POST", FILES, {201}, content.bytes(), **_TUS, **told)
        else:
            body = json.dumps({**name, "size_bytes": content.size_bytes}).encode()
            created = await self.ask(
                client, "POST", FILES, {201}, body, **{"Content-Type": "application/json"}
            )
        if created is None or created.status != 201:
            return False
        stored, offset = File(json.loads(created.body)["file_uuid"], content), created.offset
        if offset <= 0 and self._dice.random() < DELTAS and (base := self._base_of(content)) is not None:
            offset = await self._send_delta(client, base, stored)
        is_there = offset == content.size_bytes or await self._put(client, stored, offset)
        if is_there:
            self.kept[stored.file_uuid] = stored
            self.stored_count += 1
        return is_there

    def _some_content(self) -> Content:
        if self._contents and self._dice.random() < AGAIN:
            return self._dice.choice(self._contents)
        self._contents.append(Content(self._seed, len(self._contents)))
        return self._contents[-1]

    def _base_of(self, content: Content) -> File | None:
        """A file with another version of the same disk."""
        files = [self.kept[name] for name in sorted(self.kept)] if content.disk is not None else []
        versions = [each for each in files if _content_of(each).disk == content.disk]
        return self._dice.choice(versions) if versions else None

    async def _send_delta(self, client: str, base: File, stored: File) -> int:
        """Send all as a delta of another file; how much of it is durable, as far as that was told."""
        delta = delta_of(_content_of(base), _content_of(stored))
        headers = _TUS | {"Content-Type": DELTA_TYPE, BASE_FIELD: base.file_uuid, "Upload-Offset": "0"}
        path = f"{_file(stored)}/content"
        answer = await self.ask(client, "PATCH", path, {204, 404, 409}, delta, **headers)
        self._count("delta", is_done=answer is not None and answer.status == 204)
        return -1 if answer is None else answer.offset

    async def _put(self, client: str, stored: File, offset: int) -> bool:
        """Send all from this offset on, and again from where it is said to stand; whether it is stored."""
        content, raw = stored.content, stored.content.bytes()
        for _ in range(TRIES_MAX):
            headers = {}
            if offset > 0:
                piece = f"{offset}-{len(raw) - 1}" if offset < len(raw) else "*"
                headers["Content-Range"] = f"bytes {piece}/{len(raw)}"
            path = f"{_file(stored)}/content"
            answer = await self.ask(client, "PUT", path, {200, 409}, raw[max(offset, 0) :], **headers)
            if answer is None:
                offset = 0
                await asyncio.sleep(RETRY_S)
            elif answer.status == 200:
                if json.loads(answer.body)["blob_sha256"] != content.sha256:
                    self.fault(f"{stored.file_uuid} was stored with another sha256: {answer.body!r}")
                return True
            elif answer.status == 409 and answer.offset >= 0:
                offset = answer.offset
            else:
                return False
        return False

    async def _read(self, client: str, node: str, stored: File) -> bool:
        """Whether that was answered. What is wrong with the answer is a fault."""
        was_deleted = stored.is_deleted
        answer = await self.ask(client, "GET", _file(stored), GONE | {200}, node=node)
        if answer is None:
            return False
        if wrong := stored.wrong_with(answer.status, answer.body, was_deleted=was_deleted):
            self.fault(f"{client} asked {node} for {stored.file_uuid}: {wrong}")
        return True

    async def _remove(self, client: str, stored: File) -> bool:
        """Delete a file; whether that was acknowledged."""
        stored.is_deletion_asked = True
        del self.kept[stored.file_uuid]
        expected = {200}
        for _ in range(TRIES_MAX):
            answer = await self.ask(client, "DELETE", _file(stored), expected)
            if answer is not None and answer.status in expected:
                stored.is_deleted = True
                self._deleted.append(stored)
                return True
            expected = {200, 404}  # an earlier request that was not answered may have done it
            await asyncio.sleep(RETRY_S)
        return False

    def _any_node(self) -> str:
        return self._dice.choice(sorted(self._nodes))

    async def ask(
        self,
        client: str,
        method: str,
        path: str,
        expected: Iterable[int],
        body: bytes | None = None,
        *,
        node: str = "",
        **headers: str,
    ) -> Answer | None:
        """One request at this node, or at some; None when it was refused for now, or not answered.

        Any other answer that is not expected is a fault.
        """
        node = node or self._any_node()
        answer = await self._asked(method, path, node, body, headers)
        if answer is None or answer.status in REFUSALS:
            self._ledger.errors["content " + ("broken off" if answer is None else str(answer.status))] += 1
            return None
        if answer.status not in expected:
            self.fault(f"{client} {method} {path} at {node}: {answer.status} {answer.body[:300]!r}")
        return answer

    async def _asked(
        self,
        method: str,
        path: str,
        node: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer | None:
        """What was answered; None when nothing was, or not all of it."""
        url = f"{self._nodes[node].url}{path}"
        try:
            async with self._http.request(method, url, data=body, headers=headers) as answer:
                offset = int(answer.headers.get("Upload-Offset", "-1"))
                return Answer(answer.status, offset, await answer.read())
        except aiohttp.ClientConnectorCertificateError as error:
            self.fault(f"the certificate of {node} is not as it should be: {error}")
        except (aiohttp.ClientError, OSError, TimeoutError):
            pass
        return None

    def fault(self, text: str) -> None:
        self._ledger.faults.append(f"at {self._ledger.now_s():.3f} s: {text}")


def session(root_pem: str, token: str) -> aiohttp.ClientSession:
    """What asks the nodes, with this token. Their certificates may be of a time that is yet to come."""
    context = client_context(root_pem)
    context.verify_flags |= _NO_CHECK_TIME
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context),
        timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
        headers={"Authorization": f"Bearer {token}"},
    )


def _file(stored: File) -> str:
    return f"/api/v1/files/{stored.file_uuid}"


def _content_of(stored: File) -> Content:
    assert isinstance(stored.content, Content)
    return stored.content
