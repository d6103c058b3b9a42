"""Clients that write and read project files, and the history of what they were told.

A register is one project file: its value is the project's name, made by the create, changed by updates and
ended by the delete. Every value is written once, so that a read tells which write it saw. Updates and
deletes of a file that is there must not be told that it is not: that is how a change that was applied twice
would show.
"""

import asyncio
import collections
import contextlib
import itertools
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from ca.errors import FilestoreError, InsufficientStorage, InvalidRequest, NotFound, Unavailable
from metadata.model.records import Caller, ProjectFilePage, ProjectFileRecord, UploadRecord
from metadata.protocol.commands import CreateProjectFile, DeleteFile, UpdateProjectFile
from metadata.protocol.queries import GetProjectFile, ListProjectFiles
from metadata.rpc.client import MetadataClient
from tests.history import Operation
from tests.history_records import Kind, Outcome, Value
from tests.unit import state

DELETED = "(no such file)"  # what a register holds in the end; written once, by its only deleter
KEYS_MAX = 24  # registers in use at a time
KEY_OPERATIONS_MAX = 400  # then it is deleted, and another takes its place
PROJECT_FILES = 30  # created in one project before the next one begins: a list of it is one page
PAUSE_S_MAX = 0.04  # between two operations of one client: the members share this machine's cores with us
PROBE_S = 0.025
PROBES_MAX = 8  # more would only keep the members from their election
RESUME_TIMEOUT_S = 30.0
READ_TRIES_MAX = 8


@dataclass
class Key:
    """A register. `is_retired` once its delete was called."""

    file_uuid: str
    project_id: str
    operations: int = 0
    is_retired: bool = False
    gone_at: float | None = None  # when its delete was acknowledged


@dataclass
class Call:
    """An operation under way; what it comes to is filled in."""

    client: str
    key: str
    kind: Kind
    value: Value
    called_at: float
    outcome: Outcome = "unknown"
    returned_at: float | None = None


@dataclass
class Client:
    """A task with a connection that it shares with others of its kind."""

    name: str
    metadata: MetadataClient
    is_writer: bool
    timeout_s: float = 5.0
    is_dismissed: bool = False


@dataclass
class Ledger:
    """What was asked and answered: the history, and what is a fault by itself."""

    history: list[Operation] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    errors: collections.Counter[str] = field(default_factory=collections.Counter)
    started_at: float = field(default_factory=time.monotonic)

    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_at

    @contextlib.contextmanager
    def call(self, client: str, verb: str, key: str, kind: Kind, value: Value = None) -> Iterator[Call]:
        """Notes one operation, whatever becomes of it; the outcome is unknown unless the block says more."""
        call = Call(client, key, kind, value, self.now_s())
        try:
            yield call
        except NotFound:
            raise
        except InvalidRequest as error:
            self.faults.append(f"at {self.now_s():.3f} s: {client} {verb} {key}: {error.details}")
        except (Unavailable, InsufficientStorage) as error:
            self.errors[error.code] += 1
        except FilestoreError as error:
            self.faults.append(
                f"at {self.now_s():.3f} s: {client} {verb} {key}: {error.code} {error.details}"
            )
        finally:
            self.note(call, verb)

    def note(self, call: Call, verb: str) -> None:
        """Add an operation that has ended to the history."""
        self.outcomes[f"{verb} {call.outcome}"] += 1
        self.history.append(
            Operation(
                client=call.client,
                key=call.key,
                kind=call.kind,
                value=call.value,
                called_at=call.called_at,
                returned_at=call.returned_at,
                outcome=call.outcome,
            )
        )

    def answered(self, call: Call, value: Value = None) -> None:
        """It was acknowledged; a read found `value`."""
        call.outcome, call.returned_at = "ok", self.now_s()
        if call.kind == "read":
            call.value = value


class Workload:
    """Everything that the clients share. `run` lets them work until `stop`."""

    def __init__(self, caller: Caller, dice: random.Random) -> None:
        self.ledger = Ledger()
        self._caller = caller
        self._dice = dice
        self._keys: dict[str, Key] = {}  # in use
        self._known: dict[str, Key] = {}  # every key whose create was acknowledged
        self._numbers = itertools.count(1)
        self._created = itertools.count()
        self._group: asyncio.TaskGroup | None = None
        self._is_over = False

    async def run(self, clients: list[Client]) -> None:
        """Work until `stop`; every operation that was begun ends."""
        async with asyncio.TaskGroup() as self._group:
            for client in clients:
                self.hire(client)

    def hire(self, client: Client) -> None:
        """One more works, until `stop` or until it is dismissed."""
        assert self._group is not None, "the others work"
        self._group.create_task(self._work(client), name=f"client {client.name}")

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_over = True

    async def acknowledged_after(self, client: Client, since: float) -> float | None:
        """Seconds from `since` (on the ledger's clock) until a write that was called later is acknowledged.

        None when there is none in time. Asks often, since the answer is a measurement.
        """
        acknowledged: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        async def probe() -> None:
            if await self._create(client) and not acknowledged.done():
                acknowledged.set_result(self.ledger.now_s() - since)

        probes: list[asyncio.Task[None]] = []
        give_up_at = since + RESUME_TIMEOUT_S
        while not acknowledged.done() and self.ledger.now_s() < give_up_at:
            if sum(not task.done() for task in probes) < PROBES_MAX:
                probes.append(asyncio.create_task(probe()))
            await asyncio.wait([acknowledged], timeout=PROBE_S)
        for task in probes:
            task.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        return acknowledged.result() if acknowledged.done() else None

    async def read_everything(self, client: Client) -> None:
        """Every register that was ever acknowledged, once."""
        for key in list(self._known.values()):
            await self._read(client, key)

    async def can_read(self, client: Client) -> bool:
        """Whether this client is answered a read, sooner or later."""
        for key in list(self._known.values())[-READ_TRIES_MAX:]:
            if await self._read(client, key):
                return True
        return False

    async def write(self, client: Client) -> bool:
        """Change some register, as a client that knows it; whether that was acknowledged."""
        if (key := self._any_key()) is None:
            return await self._create(client)
        return await self._update(client, key)

    async def read(self, client: Client) -> bool:
        """Read some register; whether that was answered."""
        return (key := self._any_key()) is not None and await self._read(client, key)

    def _any_key(self) -> Key | None:
        """One in use, by the dice."""
        if not self._keys:
            return None
        key = self._keys[self._dice.choice(sorted(self._keys))]
        key.operations += 1
        return key

    async def _work(self, client: Client) -> None:
        while not (self._is_over or client.is_dismissed):
            await self._one(client)
            await asyncio.sleep(self._dice.random() * PAUSE_S_MAX)

    async def _one(self, client: Client) -> None:
        roll = self._dice.random()
        if client.is_writer and (len(self._keys) < KEYS_MAX or roll < 0.02):
            await self._create(client)
            return
        if (key := self._any_key()) is None:
            return
        if client.is_writer and (key.operations > KEY_OPERATIONS_MAX or len(self._keys) > 2 * KEYS_MAX):
            await self._delete(client, key)
        elif client.is_writer and roll < 0.65:
            await self._update(client, key)
        elif roll < 0.9:
            await self._read(client, key)
        else:
            await self._list(client, key.project_id)

    def _new_value(self, client: Client) -> str:
        return f"{client.name}-{next(self._numbers)}"

    async def _create(self, client: Client) -> bool:
        value = self._new_value(client)
        project_id = f"p{next(self._created) // PROJECT_FILES}"
        key = Key(str(uuid.UUID(int=self._dice.getrandbits(128))), project_id)
        with self.ledger.call(client.name, "create", key.file_uuid, "write", value) as call:
            await client.metadata.propose(
                self._create_command(key, value), UploadRecord, timeout_s=client.timeout_s
            )
            self.ledger.answered(call)
            self._keys[key.file_uuid] = self._known[key.file_uuid] = key
        return call.outcome == "ok"

    def _create_command(self, key: Key, value: str) -> CreateProjectFile:
        return state.create(
            self._caller,
            key.file_uuid,
            filename="lab.gns3p",
            size_bytes=1,
            project_id=key.project_id,
            project_name=value,
            placement=[],  # the leader's business
        )

    async def _update(self, client: Client, key: Key) -> bool:
        value = self._new_value(client)
        command = UpdateProjectFile(caller=self._caller, file_uuid=key.file_uuid, project_name=value)
        async with self._may_be_gone(client, key):
            with self.ledger.call(client.name, "update", key.file_uuid, "write", value) as call:
                record = await self._proposed(client, command, call)
                if record is not None and record.project_name != value:
                    self.ledger.faults.append(f"{client.name} wrote {value}, was told {record.project_name}")
            return call.outcome == "ok"
        return True  # it is gone: that is an answer

    async def _proposed(
        self, client: Client, command: UpdateProjectFile, call: Call
    ) -> ProjectFileRecord | None:
        try:
            record = await client.metadata.propose(command, ProjectFileRecord, timeout_s=client.timeout_s)
        except NotFound:
            call.outcome, call.returned_at = "failed", self.ledger.now_s()
            raise
        self.ledger.answered(call)
        return record

    async def _delete(self, client: Client, key: Key) -> None:
        if key.is_retired:
            return
        key.is_retired = True
        self._keys.pop(key.file_uuid, None)
        command = DeleteFile(caller=self._caller, file_uuid=key.file_uuid, kind="project_file")
        with self.ledger.call(client.name, "delete", key.file_uuid, "write", DELETED) as call:
            try:
                await client.metadata.propose(command, type(None), timeout_s=client.timeout_s)
            except NotFound:
                self.ledger.faults.append(
                    f"at {self.ledger.now_s():.3f} s: the only delete of {key.file_uuid} found no file:"
                    " it was applied twice, or the file was lost"
                )
                return
            self.ledger.answered(call)
            key.gone_at = call.returned_at

    async def _read(self, client: Client, key: Key) -> bool:
        query = GetProjectFile(caller=self._caller, file_uuid=key.file_uuid)
        with self.ledger.call(client.name, "read", key.file_uuid, "read") as call:
            try:
                record = await client.metadata.read(query, ProjectFileRecord, timeout_s=client.timeout_s)
                value = record.project_name
            except NotFound:
                value = DELETED
            self.ledger.answered(call, value)
        return call.outcome == "ok"

    async def _list(self, client: Client, project_id: str) -> None:
        """A read of every register in the project; one that is not listed was deleted."""
        called_at = self.ledger.now_s()
        expected = [
            key.file_uuid
            for key in self._known.values()
            if key.project_id == project_id and (key.gone_at is None or key.gone_at > called_at - 1)
        ]
        query = ListProjectFiles(caller=self._caller, project_id=project_id)
        with self.ledger.call(client.name, "list", "(list)", "read") as whole:
            page = await client.metadata.read(query, ProjectFilePage, timeout_s=client.timeout_s)
            assert page.next_cursor == 0, "one page holds a project"
            found = {record.file_uuid: record.project_name for record in page.files}
            returned_at = self.ledger.now_s()
            for file_uuid in sorted({*expected, *found}):
                value = found.get(file_uuid, DELETED)
                call = Call(client.name, file_uuid, "read", value, called_at, "ok", returned_at)
                self.ledger.note(call, "listed")
            self.ledger.answered(whole)

    @contextlib.asynccontextmanager
    async def _may_be_gone(self, client: Client, key: Key) -> AsyncIterator[None]:
        """A change that is told that there is no file has read that it was deleted."""
        called_at = self.ledger.now_s()
        try:
            yield
        except NotFound:
            now_s = self.ledger.now_s()
            call = Call(client.name, key.file_uuid, "read", DELETED, called_at, "ok", now_s)
            self.ledger.note(call, "update of deleted")
