"""A leader takes a snapshot, and a node asks for what is in it."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from ca.errors import Conflict, Forbidden, Internal, NotFound
from coordinator.reconcile.job_runs import StepProgress
from coordinator.rpc.server import value_of
from metadata.model.records import Caller, UserRecord
from metadata.model.snapshot_records import RevivedFile, SnapshotFilePage, SnapshotPage
from metadata.protocol.calls import AnyCall, ProposeCall, ReadCall
from metadata.protocol.commands import (
    AdmitUser,
    AnyCommand,
    DeleteFile,
    ReviveFile,
    TriggerJob,
)
from metadata.protocol.queries import GetVm, ListSnapshots
from metadata.protocol.snapshot_calls import SnapshotContent, SnapshotFileCall
from metadata.protocol.snapshot_calls import SnapshotFilesCall as FilesCall
from metadata.rpc import wire
from runtime.clock import now_ms
from tests.unit.coordinator_group import Coordinator, Spoken, group_in, speaking
from tests.unit.state import complete, create, create_vm

DEADLINE_S = 30.0
_T = TypeVar("_T")

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


class World:
    """A coordinator that leads alone; the node n1 asks it for the admin."""

    def __init__(self, leader: Coordinator, node: Spoken) -> None:
        self.leader, self.driver, self._node = leader, leader.member.driver, node
        self.admin = self.caller("admin")

    def caller(self, user_id: str, generation: int = 1) -> Caller:
        token = self.leader.member.authority.sign_user_token(
            subject=user_id,
            generation=generation,
            roles=(),
            groups=(),
            at_ms=now_ms(),
            ttl_seconds=300,
            token_id="t",
        )
        return Caller(user_id, generation, token)

    async def ask(self, call: AnyCall) -> wire.AnswerFrame:
        answer = await self._node.ask(call)
        assert answer is not None
        return answer

    async def told(self, call: AnyCall, answer_type: type[_T]) -> _T:
        answer = await self.ask(call)
        assert answer.status == wire.OK, answer
        return msgspec.msgpack.decode(answer.value, type=answer_type)

    async def apply(self, *commands: AnyCommand) -> None:
        for command in commands:
            await self.driver.propose(command)

    async def snapshot(self) -> StepProgress:
        """Let the job work; its progress, with the result."""
        admin = self.admin.unsigned()
        await self.apply(TriggerJob(caller=admin, run_id="r1", job_name="snapshot", node_id="c1"))
        (run,) = self.leader.member._ledger.store.running_runs()
        progress = StepProgress("c1", self.driver, run)
        await self.leader.member.job_runs._jobs["snapshot"].work(progress)
        return progress

    def files(self, snapshot_id: str, **changes: object) -> FilesCall:
        call = FilesCall(
            caller=self.admin, snapshot_id=snapshot_id, bucket_id="", filename="", cursor=0, limit=10
        )
        return msgspec.structs.replace(call, **changes)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    (leader,) = group_in(tmp_path, "c1")
    async with asyncio.timeout(DEADLINE_S), leader.run():
        await leader.leads()
        await leader.joined("n2", tmp_path)
        contexts = await leader.joined("n1", tmp_path)
        async with speaking(leader.record, "/rpc", contexts) as node:
            yield World(leader, node)


async def stored(world: World) -> None:
    admin = world.admin.unsigned()
    vm = create_vm(admin, "f1", placement=["n1", "n2"], path="images/old")
    done = msgspec.structs.replace(complete(admin, "f1", "a" * 64, ["n1", "n2"]), md5="0" * 32)
    other = create(admin, "f2", placement=["n1", "n2"])
    await world.apply(vm, done, other, complete(admin, "f2", "b" * 64, ["n1", "n2"]))
    await world.apply(create(admin, "f3", placement=["n1", "n2"]))  # not complete


async def test_deleted_file_comes_back_from_the_snapshot_of_the_job(world: World) -> None:
    await stored(world)
    result = (await world.snapshot()).result
    (taken,) = (await world.told(ReadCall(ListSnapshots(caller=world.admin)), SnapshotPage)).snapshots
    assert (result["coordinator"], result["file"]) == ("c1", f"{taken.snapshot_id}.sqlite")
    assert (taken.log_index, taken.files, taken.hold) == (result["log_index"], 3, "held")
    first = await world.told(world.files(taken.snapshot_id, limit=1), SnapshotFilePage)
    rest = await world.told(
        world.files(taken.snapshot_id, limit=1, cursor=first.next_cursor), SnapshotFilePage
    )
    assert [file.file_uuid for file in first.files + rest.files] == ["f1", "f2"]
    assert (first.files[0].path, first.files[0].bucket_name, rest.next_cursor) == ("images/old", "default", 0)
    named = world.files(taken.snapshot_id, filename="disk.qcow2", bucket_id=first.files[0].bucket_id)
    assert [file.file_uuid for file in (await world.told(named, SnapshotFilePage)).files] == ["f1"]
    call = SnapshotFileCall(caller=world.admin, snapshot_id=taken.snapshot_id, file_uuid="f1")
    found = await world.told(call, SnapshotContent)
    await world.apply(DeleteFile(caller=world.admin.unsigned(), file_uuid="f1", kind="", trash_ms=0))
    command = ReviveFile(
        caller=world.admin,
        create=msgspec.structs.replace(found.create, file_uuid="f9"),
        owner_id=found.owner_id,
        owner_sequence=found.owner_sequence,
    )
    revived = await world.told(ProposeCall(0, 0, 0, command), RevivedFile)
    assert (revived.file_uuid, revived.kind, revived.owner_id) == ("f9", "vm", "admin")
    record = await world.told(ReadCall(GetVm(caller=world.admin, file_uuid="f9")), dict[str, object])
    assert (record["md5"], record["path"], record["status"]) == ("0" * 32, "images/old", "available")


async def test_only_admins_see_what_is_in_a_snapshot(world: World) -> None:
    admit = AdmitUser(caller=world.admin.unsigned(), user_id="bob", roles=None, groups=None)
    user = msgspec.msgpack.decode(value_of(await world.driver.propose(admit)), type=UserRecord)
    snapshot_id = str((await world.snapshot()).result["file"]).removesuffix(".sqlite")
    bob = world.caller("bob", user.generation)
    call = SnapshotFileCall(caller=bob, snapshot_id=snapshot_id, file_uuid="f1")
    assert (await world.ask(call)).status == Forbidden.code
    assert (await world.ask(world.files(snapshot_id, caller=bob))).status == Forbidden.code


async def test_snapshot_that_is_gone_damaged_or_of_another_release_is_said_to_be_so(world: World) -> None:
    backups = world.leader.files.backups
    snapshot_id = str((await world.snapshot()).result["file"]).removesuffix(".sqlite")
    path = backups / f"{snapshot_id}.sqlite"
    unknown = SnapshotFileCall(caller=world.admin, snapshot_id=snapshot_id, file_uuid="f1")
    assert (await world.ask(unknown)).status == NotFound.code
    for name in ("../state", "20260101T000000-1", "x"):
        assert (await world.ask(world.files(name))).status == NotFound.code
    (backups / "20260101T000000-2.sqlite").write_bytes(b"")  # a database without tables
    assert (await world.ask(world.files("20260101T000000-2"))).status == Conflict.code
    path.write_bytes(os.urandom(path.stat().st_size))
    assert (await world.ask(world.files(snapshot_id))).status == Internal.code


async def test_snapshot_that_fails_holds_what_was_there_when_it_began(world: World) -> None:
    world.leader.files.backups.write_bytes(b"in the way")
    with pytest.raises(OSError, match="exists"):
        await world.snapshot()
    listed = await world.told(ReadCall(ListSnapshots(caller=world.admin)), SnapshotPage)
    assert listed.snapshots == []
    rows = world.leader.member._ledger.store.read_with(
        lambda db: db.execute("SELECT snapshot_id, log_index = sequence FROM kept_snapshots").fetchall()
    )
    assert rows == [("", 1)]


async def test_daily_snapshot_begins_when_the_cluster_is_a_day_old(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = world.leader.member.job_runs._jobs
    assert not jobs["snapshot"].is_due()
    assert not jobs["rehearse"].is_due()
    monkeypatch.setattr(world.leader.member.clocks, "now_ms", lambda: now_ms() + 86_400_000)
    assert jobs["snapshot"].is_due()
    assert not jobs["rehearse"].is_due()  # nothing is sent to another place
