"""Members cut the same log into batches at different places: replies and rows must not depend on where."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from coordinator.machine.execution import sessions
from coordinator.machine.execution.digests import TABLES
from coordinator.raft.messages import Entry, EntryKind
from coordinator.storage.state_store import Store
from metadata.model.records import Caller, Manifest
from metadata.protocol import commands
from metadata.protocol.commands import AnyCommand, Envelope, OpenSession, encode_envelope
from tests.unit.state import (
    ADMIN,
    bootstrap,
    complete,
    coordinator,
    create,
    create_backup,
    create_vm,
    join,
    join_token,
    membership,
)

SESSIONS_FEW = 2  # so that sessions end within a short log
USER = Caller("u1", 1)
PREPARED = (
    bootstrap(),
    *(command for n in ("n1", "n2") for command in (join_token(f"t-{n}"), join(f"t-{n}", n))),
    OpenSession(nonce=""),
    OpenSession(nonce=""),
)


class Step(Struct, frozen=True):
    """What the next entry holds. `session` counts the openings so far; 0 is none."""

    command: AnyCommand
    session: int = 0
    sequence: int = 1
    acknowledged_below: int = 0


def admit(user_id: str, *roles: str) -> commands.AdmitUser:
    return commands.AdmitUser(caller=ADMIN, user_id=user_id, roles=list(roles), groups=None)


def finish(caller: Caller, file_uuid: str) -> commands.CompleteUpload:
    whole = complete(caller, file_uuid, "aa", ["n1", "n2"])
    return msgspec.structs.replace(whole, md5="0" * 32, manifest=Manifest(archive="gns3"))


def build_on(caller: Caller, file_uuid: str, parent_uuid: str) -> commands.CreateBackup:
    backup_type = "incremental" if parent_uuid else "full"
    return create_backup(caller, file_uuid, backup_type=backup_type, parent_backup_uuid=parent_uuid)


callers = st.sampled_from([ADMIN, USER, Caller("u1", 2)])
uuids = st.sampled_from(["f1", "f2"])
any_command = st.one_of(
    st.builds(create, callers, uuids),
    st.builds(
        lambda c, f, name: commands.UpdateProjectFile(caller=c, file_uuid=f, project_name=name),
        callers,
        uuids,
        st.sampled_from(["x", "y", None]),
    ),
    st.builds(
        lambda c, f, n: commands.RecordProgress(caller=c, file_uuid=f, node_id="n1", offset_bytes=n),
        callers,
        uuids,
        st.integers(0, 2),
    ),
    st.builds(lambda c, f: commands.DeclareSize(caller=c, file_uuid=f, size_bytes=5), callers, uuids),
    st.builds(finish, callers, uuids),
    st.builds(create_vm, callers, uuids),
    st.builds(build_on, callers, uuids, st.sampled_from(["", "f1", "f2"])),
    st.builds(
        lambda c, f, parent: commands.UpdateBackup(caller=c, file_uuid=f, parent_backup_uuid=parent),
        callers,
        uuids,
        st.sampled_from(["", "f1", "f2"]),
    ),
    st.builds(lambda c, f: commands.TerminateUpload(caller=c, file_uuid=f), callers, uuids),
    st.builds(lambda c, f: commands.DeleteFile(caller=c, file_uuid=f, kind=""), callers, uuids),
    st.sampled_from([admit("u1"), admit("u1", "admin"), admit("u2", "admin")]),
    st.builds(commands.HashState, rows_max=st.sampled_from([1, 2000])),
    st.just(OpenSession(nonce="")),
)
steps = st.lists(
    st.builds(Step, any_command, st.integers(0, 5), st.integers(1, 6), st.integers(0, 8)), max_size=40
)
cuts = st.lists(st.integers(1, 20), min_size=1, max_size=5)


def log_of(program: Sequence[Step]) -> list[Entry]:
    """The entries; the membership changes in the middle of them."""
    entries: list[Entry] = []
    opened: list[int] = [0]

    def append(step: Step) -> None:
        index = len(entries) + 1
        session = opened[step.session % len(opened)]
        envelope = Envelope(session, step.sequence, step.acknowledged_below, 1_000_000 + index, step.command)
        entries.append(Entry(index, 1, EntryKind.COMMAND, encode_envelope(envelope)))
        if isinstance(step.command, OpenSession) and not session:
            opened.append(index)

    for command in PREPARED:
        append(Step(command))
    for number, step in enumerate(program):
        if number == len(program) // 2:
            entries.append(membership(len(entries) + 1, coordinator("c1"), coordinator("c2", role="learner")))
        append(step)
    return entries


def outcome(entries: Sequence[Entry], sizes: Sequence[int]) -> tuple[list[bytes], list[str]]:
    """Replies and rows after batches of these sizes, again and again."""
    replies: list[bytes] = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        store = Store.over(db, db)
        while len(replies) < len(entries):
            size = sizes[0]
            sizes = (*sizes[1:], size)
            replies += store.apply(entries[len(replies) : len(replies) + size])
        return replies, list(db.iterdump())


def check_cuts(program: Sequence[Step], sizes: Sequence[int]) -> list[bytes]:
    """The replies to the program, which are the same one by one, in these batches, and in a single one."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sessions, "SESSIONS_MAX", SESSIONS_FEW)
        entries = log_of(program)
        one_by_one = outcome(entries, [1])
        assert outcome(entries, sizes) == one_by_one
        assert outcome(entries, [len(entries)]) == one_by_one
    return one_by_one[0][len(PREPARED) :]


def refusal(reply: bytes) -> str:
    return msgspec.msgpack.decode(reply, type=commands.Reply).refusal


def value(reply: bytes) -> msgspec.Raw:
    return msgspec.msgpack.decode(reply, type=commands.Reply).value


@settings(deadline=None, max_examples=150)
@given(program=steps, sizes=cuts)
@example(  # a role is taken away between two commands of its user
    program=[
        Step(create(ADMIN, "f1")),
        Step(admit("u1", "admin")),
        Step(commands.DeclareSize(caller=USER, file_uuid="f1", size_bytes=5)),
        Step(admit("u1")),
        Step(commands.DeclareSize(caller=USER, file_uuid="f1", size_bytes=5)),
    ],
    sizes=[7],
)
@example(  # the session that was used last before this batch is the longest unused in it
    program=[
        Step(create(ADMIN, "f1"), 2, 1, 1),
        Step(create(ADMIN, "f2"), 1, 1, 1),
        Step(OpenSession(nonce="")),
        Step(create(ADMIN, "f1"), 2, 1, 1),
        Step(create(ADMIN, "f2"), 1, 1, 1),
    ],
    sizes=[8, 3],
)
def test_replies_and_rows_do_not_depend_on_the_batches(program: list[Step], sizes: list[int]) -> None:
    check_cuts(program, sizes)


def test_copy_in_the_same_batch_gets_the_reply_of_the_first() -> None:
    _, first, copy = check_cuts([Step(create(ADMIN, "f2")), *[Step(create(ADMIN, "f1"), 1, 1, 1)] * 2], [2])[
        -3:
    ]
    assert copy == first
    assert refusal(first) == ""


def test_late_copy_in_the_same_batch_is_not_applied() -> None:
    made, gone, late = (
        Step(create(ADMIN, "f1"), 1, 1, 1),
        Step(commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind=""), 1, 2, 2),
        Step(create(ADMIN, "f1"), 1, 1, 1),
    )
    replies = check_cuts([made, gone, late], [4])
    assert refusal(replies[-1]) == "unavailable"


def test_session_that_ended_in_the_same_batch_applies_nothing() -> None:
    program = [
        Step(create(ADMIN, "f1"), 1, 1, 1),
        Step(OpenSession(nonce="")),
        Step(create(ADMIN, "f2"), 2, 1, 1),
    ]
    assert refusal(check_cuts(program, [4])[-1]) == "session_ended"


def test_digest_covers_what_the_same_batch_did_to_a_session() -> None:
    before = [Step(commands.HashState())] * TABLES.index("sessions")
    program = [*before, Step(create(ADMIN, "f1"), 1, 1, 1), *[Step(commands.HashState())] * 2]
    hashed = [msgspec.msgpack.decode(value(reply)) for reply in check_cuts(program, [30])[-2:]]
    assert [(found["table"], found["rows"]) for found in hashed] == [("sessions", 2), ("replies", 1)]


def test_opening_that_ends_its_own_session_leaves_no_reply_behind() -> None:
    entries = log_of([Step(create(ADMIN, "f1"), 2, 1, 1), Step(OpenSession(nonce=""), 1, 1, 1)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sessions, "SESSIONS_MAX", SESSIONS_FEW)
        _, rows = outcome(entries, [len(entries)])
    assert sum('INSERT INTO "replies"' in row for row in rows) == 1


def test_command_that_its_client_was_done_with_before_is_applied_once() -> None:
    """No client of ours sends it: acknowledged beyond its own sequence."""
    program = [Step(create(ADMIN, "f1"), 1, 3, 9), Step(create(ADMIN, "f1"), 1, 3, 9)]
    assert [refusal(reply) for reply in check_cuts(program, [3])[-2:]] == ["", "unavailable"]
