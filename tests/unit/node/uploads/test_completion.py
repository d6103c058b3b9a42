"""An upload of content that is about to be dropped ends at once: real nodes, and the real state machine."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from ca.certificates import Authority
from ca.errors import Unavailable
from metadata.model.records import ContentRecord
from metadata.protocol import commands
from metadata.protocol.commands import Envelope, decode_envelope, encode_envelope
from metadata.protocol.queries import ListReplicas
from node.custody import collect, reporter
from node.custody.context import Pass
from node.storage.segments import FinishedBlob
from node.uploads.completion import record_completion
from runtime.bounds import NODES_MAX
from tests.unit import replica_acts as acts
from tests.unit.custody_node import DAY_S, Keeper, Log
from tests.unit.peer_nodes import CONTENT, SHA256, Node, introduce, running_node
from tests.unit.state import ADMIN, Refusal, State, create

NAMES = ("n1", "n2", "n3")


@pytest.fixture
async def keepers(tmp_path: Path, peer_authority: Authority) -> AsyncIterator[tuple[State, list[Node]]]:
    """Three nodes with their custody, whose content a file had, and which nobody needs any more."""
    state = State(tmp_path / "state")
    state.nodes(*NAMES)
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(running_node(name, tmp_path / name, peer_authority, Log(state)))
            for name in NAMES
        ]
        introduce(nodes)
        for node in nodes:
            node.store()
        assert not isinstance(completed(state, "first"), Refusal)
        state.done(commands.DeleteFile(caller=ADMIN, file_uuid="first", kind=""))
        acts.collect(state)
        yield state, nodes
        state.store.close()


def completion(state: State, file_uuid: str) -> commands.CompleteUpload:
    """Of a new upload, as its node begins with it."""
    state.done(create(ADMIN, file_uuid))
    return commands.CompleteUpload(
        caller=ADMIN,
        file_uuid=file_uuid,
        blob_sha256=SHA256,
        size_bytes=len(CONTENT),
        replicas=list(NAMES),
        as_of=state.log_index,
    )


def completed(state: State, file_uuid: str) -> object:
    return state.apply(completion(state, file_uuid))


def holders(state: State) -> list[str]:
    """Who holds the content, and shall keep it."""
    lists = {name: state.ask(ListReplicas(node_id=name))["replicas"] for name in NAMES}
    return [name for name, held in lists.items() if any(not each["doomed"] for each in held)]


def age(node: Node) -> None:
    """It came long ago: nothing spares it."""
    at_s = time.time() - 2 * DAY_S
    for path in (node.blob_path(), node.blob_path().with_name(f"{SHA256}.sums")):
        os.utime(path, (at_s, at_s))


async def test_content_that_comes_again_is_taken_while_its_nodes_are_to_drop_it(
    keepers: tuple[State, list[Node]],
) -> None:
    state, nodes = keepers
    for node in nodes:
        age(node)
    assert isinstance(completed(state, "refused"), Refusal)
    record = await record_completion(nodes[0].services, completion(state, "second"))
    assert isinstance(record, ContentRecord)
    assert holders(state) == list(NAMES)
    for node in nodes:
        custody = node.services.custody
        assert custody is not None
        for work in custody.works:
            await work.do_due()
        assert node.services.blobs.has(SHA256)


async def test_replica_that_was_deleted_already_comes_anew(keepers: tuple[State, list[Node]]) -> None:
    state, nodes = keepers
    assert nodes[1].services.blobs.delete(SHA256)  # it has yet to report that
    record = await record_completion(nodes[0].services, completion(state, "second"))
    assert record.replicas == holders(state) == list(NAMES)
    assert all(node.services.blobs.has(SHA256) for node in nodes)


async def test_replica_that_went_since_it_was_seen_comes_anew(keepers: tuple[State, list[Node]]) -> None:
    state, nodes = keepers
    command = completion(state, "second")  # now they are seen
    age(nodes[1])
    custody = nodes[1].services.custody
    assert custody is not None
    await custody.collect(Pass(yes_really=True))
    assert not nodes[1].services.blobs.has(SHA256)
    await record_completion(nodes[0].services, command)
    assert holders(state) == list(NAMES)
    assert nodes[1].services.blobs.has(SHA256)


async def test_upload_that_another_node_holds_by_now_is_not_completed(
    keepers: tuple[State, list[Node]],
) -> None:
    state, nodes = keepers
    command = msgspec.structs.replace(completion(state, "second"), node_id="n2")
    state.done(
        commands.TakeOverUpload(
            caller=ADMIN, file_uuid="second", holder="n1", successor="n2", epoch=0, offset_bytes=0
        )
    )
    with pytest.raises(Unavailable):
        await record_completion(nodes[0].services, command)


async def test_content_that_comes_again_is_taken_before_its_node_has_dropped_it(keeper: Keeper) -> None:
    name = keeper.store(nodes=("n1", "n2"))
    keeper.doom(name)
    keeper.age(name)
    assert isinstance(acts.put(keeper.state, "early", name, "n1", as_of=keeper.state.log_index), Refusal)
    as_of = keeper.state.log_index
    assert await keeper.custody.retain(name)
    assert not isinstance(acts.put(keeper.state, "again", name, "n1", "n3", as_of=as_of), Refusal)
    await keeper.collect()
    assert keeper.held() == keeper.on_disk() == [name]


async def test_replica_is_retained_although_the_answer_to_its_report_was_lost(keeper: Keeper) -> None:
    name = keeper.store()
    await keeper.collect()  # fences it
    keeper.doom(name)
    keeper.log.lost_answers = 1
    assert await keeper.custody.retain(name)
    assert keeper.held() == keeper.on_disk() == [name]


async def test_doomed_replica_that_is_not_there_any_more_may_come_anew_at_once(keeper: Keeper) -> None:
    content = keeper.content()
    name = keeper.store(content, nodes=("n1", "n2"))
    keeper.doom(name)
    keeper.lose(name)
    assert not await keeper.custody.retain(name)
    assert keeper.put(content) == name
    assert not isinstance(
        acts.put(keeper.state, "again", name, "n1", "n3", as_of=keeper.state.log_index), Refusal
    )
    assert keeper.held() == [name]


async def test_replica_that_nobody_has_doomed_is_retained_without_a_report(keeper: Keeper) -> None:
    name = keeper.store()
    await keeper.collect()
    asked = len(keeper.log.asked)
    assert await keeper.custody.retain(name)
    assert not await keeper.custody.retain("0" * 64)
    assert "ReportDropped" not in keeper.log.asked[asked:]


async def test_completion_of_content_that_very_many_nodes_hold_is_one_that_the_log_reads(
    keepers: tuple[State, list[Node]], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, nodes = keepers
    many = [f"m{number:02}" for number in range(NODES_MAX + 6)]
    state.nodes(*many)
    for number, half in enumerate((many[:NODES_MAX], many[-NODES_MAX:])):
        named = msgspec.structs.replace(completion(state, f"many-{number}"), replicas=half)
        assert not isinstance(state.apply(named), Refusal)

    async def holds(_attempt: object, _blob: FinishedBlob) -> bool:
        return True

    replication = nodes[0].services.replication
    monkeypatch.setattr(replication, "_holds", holds)  # as that many nodes would say
    replicas = await replication.spread(FinishedBlob(SHA256, len(CONTENT)), list(NAMES))
    command = msgspec.structs.replace(completion(state, "last"), replicas=replicas)
    assert decode_envelope(encode_envelope(Envelope(0, 0, 0, 0, command))).command == command


async def test_list_is_read_only_when_the_report_of_what_was_retained_is_answered(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "RETAIN_S", 0.05)
    monkeypatch.setattr(reporter, "RETRY_S", 0.01)
    name = keeper.store()
    await keeper.collect()  # fences it
    keeper.doom(name)
    keeper.log.lost_reports = 1_000_000
    with pytest.raises(Unavailable):
        await keeper.custody.retain(name)
    collecting = asyncio.create_task(keeper.collect())
    with pytest.raises(Unavailable):
        await keeper.custody.retain(name)
    keeper.log.lost_reports = 0
    assert (await collecting)["spared"] == 0  # it was, by the report before
    assert keeper.held() == keeper.on_disk() == [name]
