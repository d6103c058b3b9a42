"""A process that loads the coordinators as a node would: mutual TLS, heartbeats, `MetadataClient`.

    python -m bench.load --data NODE_DIRECTORY --token-file FILE

Orders come as JSON lines on stdin, each is answered by one on stdout; it ends with its stdin. Every client
is a task that waits for each answer before it asks again. Several such processes share out the clients, so
that what one of them can send is not what is measured.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uuid_utils
import uvloop
from msgspec import Struct

from metadata.model.records import DEFAULT_BUCKET_ID, Caller, NodeRecord, ProjectFileRecord, UploadRecord
from metadata.model.rules import RULES
from metadata.protocol.calls import HeartbeatCall
from metadata.protocol.commands import (
    AnnounceNode,
    AnyCommand,
    CreateProjectFile,
    Envelope,
    RecordProgress,
    encode_envelope,
)
from metadata.protocol.queries import GetProjectFile
from metadata.rpc.client import MetadataClient
from metadata.rpc.tls_contexts import MemberContexts
from metadata.rpc.view import View
from node.base.config import NodeFiles

FREE_BYTES = 1 << 40  # what the heartbeats say: no file is refused for want of room
_Obey = Callable[[Any], Awaitable["Outcome"]]  # an order of one kind
_Order = TypeVar("_Order", bound="Order")
ORDER_TIMEOUT_S = 30.0  # of one command or read while measuring: nothing may fail


class Order(Struct, frozen=True, kw_only=True):
    """`what` is `create`, `write` or `read`; so many clients for so long, or `count` of them in all."""

    what: str
    clients: int = 1
    seconds: float = 0.0
    count: int = 0


class Outcome(Struct, frozen=True, kw_only=True):
    """How many answers came in how long, what this process spent on them, and how long each took.

    `entry_bytes` is the size of such a command in the log, 0 for reads.
    """

    count: int
    elapsed_s: float
    cpu_s: float
    latencies_us: list[int]
    entry_bytes: int = 0


class Load:
    """One node's worth of clients. `begin` first."""

    def __init__(self, files: NodeFiles, token: str) -> None:
        config = files.read_config()
        self._node = config
        contexts = MemberContexts(files.credential(), config.identity)
        self.metadata = MetadataClient(config.identity, config.coordinators, contexts.client)
        self.view = View(self.metadata, lambda: HeartbeatCall(FREE_BYTES, FREE_BYTES, 0, rules=RULES))
        self.caller = Caller("admin", 1, token)
        self.number = int(config.id.rpartition("-")[2])
        self._file_uuids: list[str] = []
        self._held: list[str] = []  # of these, whose uploads this node holds: others may not tell of them

    async def begin(self) -> None:
        """Announce the node, so that the leader places files on it."""
        await self.view.wait_until_fresh()
        command = AnnounceNode(
            node_id=self._node.id, peer_port=self._node.peer_port, zone="", weight=self._node.weight
        )
        await self.metadata.propose(command, NodeRecord)

    async def obey(self, order: Order) -> Outcome:
        """Do it and tell."""
        entry_bytes = 0
        if order.what == "create":
            act, entry_bytes = self._create, self.entry_bytes(self._creation())
        elif order.what == "write":
            act, entry_bytes = self._write, self.entry_bytes(self._progress(self._held[0]))
        else:
            act = self._read
        return await measure(act, order, entry_bytes)

    def entry_bytes(self, command: AnyCommand) -> int:
        """The size of the log entry that such a command becomes."""
        bare = msgspec.structs.replace(command, caller=self.caller.unsigned())
        return len(encode_envelope(Envelope(1 << 16, 1 << 16, 1 << 16, time.time_ns() // 10**6, bare)))

    def _creation(self) -> CreateProjectFile:
        return CreateProjectFile(
            caller=self.caller,
            file_uuid=str(uuid_utils.uuid7()),
            bucket_id=DEFAULT_BUCKET_ID,
            filename="bench.gns3p",
            content_type="application/octet-stream",
            size_bytes=1 << 20,
            expected_sha256="",
            retention_hours=None,
            project_id="bench",
            project_name="",
            version_tag="",
            compression="zstd",
            include_images=False,
            include_snapshots=False,
            is_read_only=False,
            keep_compute_ids=False,
            reset_mac_addresses=False,
        )

    def _progress(self, file_uuid: str) -> RecordProgress:
        return RecordProgress(
            caller=self.caller, file_uuid=file_uuid, node_id=self._node.id, offset_bytes=1 << 16
        )

    async def _create(self, number: int) -> None:
        del number
        command = self._creation()
        created = await self.metadata.propose(command, UploadRecord, timeout_s=ORDER_TIMEOUT_S)
        self._file_uuids.append(command.file_uuid)
        if created.placement[0] == self._node.id:
            self._held.append(command.file_uuid)

    async def _write(self, number: int) -> None:
        command = self._progress(self._held[number % len(self._held)])
        await self.metadata.propose(command, UploadRecord, timeout_s=ORDER_TIMEOUT_S)

    async def _read(self, number: int) -> None:
        query = GetProjectFile(caller=self.caller, file_uuid=self._file_uuids[number % len(self._file_uuids)])
        await self.metadata.read(query, ProjectFileRecord, timeout_s=ORDER_TIMEOUT_S)


async def measure(act: Callable[[int], Awaitable[None]], order: Order, entry_bytes: int = 0) -> Outcome:
    """Let every client of an order act again and again, each with numbers of its own. Raises what failed."""
    latencies_us: list[int] = []
    numbers = iter(range(order.count or sys.maxsize))
    start, cpu_start = time.perf_counter(), time.process_time()
    stop_at = start + order.seconds if order.seconds else float("inf")

    async def client() -> None:
        while (before := time.perf_counter()) < stop_at:
            number = next(numbers, None)
            if number is None:
                return
            await act(number)
            latencies_us.append(int((time.perf_counter() - before) * 1e6))

    async with asyncio.TaskGroup() as group:
        for _ in range(order.clients):
            group.create_task(client())
    return Outcome(
        count=len(latencies_us),
        elapsed_s=time.perf_counter() - start,
        cpu_s=time.process_time() - cpu_start,
        latencies_us=latencies_us,
        entry_bytes=entry_bytes,
    )


async def serve_orders(
    obey: Callable[[_Order], Awaitable[Outcome]],
    order_type: type[_Order],
) -> None:
    """Answer the orders on stdin until it ends. An empty line on stdout says that this process is ready."""
    loop = asyncio.get_running_loop()
    sys.stdout.write("\n")
    sys.stdout.flush()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        outcome = await obey(msgspec.json.decode(line, type=order_type))
        sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        sys.stdout.flush()


async def run(data: Path, token_file: Path, obeying: Callable[[Load], _Obey], kind: type[Any]) -> None:
    """Load the cluster that this node directory belongs to, as ordered."""
    load = Load(NodeFiles(data), token_file.read_text().strip())
    async with asyncio.TaskGroup() as group:
        owned = [group.create_task(load.metadata.run()), group.create_task(load.view.run())]
        await load.begin()
        await serve_orders(obeying(load), kind)
        for task in owned:
            task.cancel()


def main(obeying: Callable[[Load], _Obey] = lambda load: load.obey, kind: type[Any] = Order) -> None:
    """Parse the arguments and run: `obeying` makes of a load what obeys orders of this kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--token-file", type=Path, required=True)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(run(arguments.data, arguments.token_file, obeying, kind))


if __name__ == "__main__":
    main()
