"""Frames between members: what is sent arrives, and nothing else decodes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import InvalidRequest
from coordinator import commands, wire
from coordinator.calls import ProposeCall
from coordinator.commands import OpenSession
from coordinator.raft.messages import Message, MessageKind
from tests.unit.state import ADMIN, complete, create, join_token

EVERY_NODE_COMMAND = (
    OpenSession(nonce="n"),
    join_token("t"),
    commands.DeleteJoinToken(caller=ADMIN, token_id="t"),
    commands.AnnounceNode(node_id="n1", peer_port=1, zone="", weight=1),
    create(ADMIN, "f1", size_bytes=1, retention_hours=1),
    commands.UpdateProjectFile(caller=ADMIN, file_uuid="f1", project_name="p"),
    commands.DeleteFile(caller=ADMIN, file_uuid="f1", kind=""),
    commands.RecordProgress(caller=ADMIN, file_uuid="f1", node_id="n1", offset_bytes=1),
    commands.DeclareSize(caller=ADMIN, file_uuid="f1", size_bytes=1),
    complete(ADMIN, "f1", "aa", ["n1", "n2"]),
    commands.TerminateUpload(caller=ADMIN, file_uuid="f1"),
)

PROPOSAL = ProposeCall(0, 0, 0, OpenSession(nonce="n"))
CALL = wire.CallFrame(1, 2000, wire.encode_call(PROPOSAL))
ANSWER = wire.AnswerFrame(1, wire.OK, "", b"\x00")
RAFT = wire.RaftFrame(Message(MessageKind.HEARTBEAT, "c1", "c2", 3))


def parcel(*frames: wire.Frame) -> bytes:
    return wire.encode_parcel([wire.encode_frame(frame) for frame in frames])


def test_frames_of_all_kinds_travel_together() -> None:
    assert wire.decode(parcel(CALL, ANSWER, RAFT)) == [CALL, ANSWER, RAFT]
    assert wire.decode_call(CALL.call) == PROPOSAL


def test_other_version_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="version 2"):
        wire.decode(msgspec.msgpack.encode(wire.Parcel(2, [ANSWER])))


def test_frame_that_no_peer_would_take_is_not_sent() -> None:
    with pytest.raises(wire.FrameTooLarge):
        wire.encode_frame(wire.AnswerFrame(1, wire.OK, "", b"x" * wire.FRAME_BYTES_MAX))


@pytest.mark.parametrize(
    "frames",
    [
        [[9, 1]],
        [[1, -1, 2000, b""]],
        [[1, 1, 10**9, b""]],
        [[2, 1, "x" * 65, "", b""]],
        [[3, [99, "c1", "c2", 1]]],
        [[2, 1, "", ""]] * (wire.FRAMES_MAX + 1),
        ["frame"],
    ],
)
def test_malformed_frames_are_refused(frames: object) -> None:
    with pytest.raises(InvalidRequest, match="malformed"):
        wire.decode(msgspec.msgpack.encode([wire.WIRE_VERSION, frames]))


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_invalid_request(data: bytes) -> None:
    try:
        wire.decode(data)
    except InvalidRequest:
        return


@given(st.integers(0, 200), st.integers(0, 255))
def test_changed_byte_decodes_to_frames_or_is_refused(place: int, byte: int) -> None:
    data = bytearray(parcel(CALL, RAFT, ANSWER))
    data[place % len(data)] = byte
    try:
        wire.decode(bytes(data))
    except InvalidRequest:
        return


@pytest.mark.parametrize(
    "call",
    [
        {"type": "no_such_call"},
        {"type": "propose", "session": 2**63, "sequence": 0, "acknowledged_below": 0},
        {"type": "heartbeat", "free_bytes": -1, "total_bytes": 0, "uploads": 0},
        {"type": "read", "query": {"type": "list_join_tokens", "caller": ["admin", 1], "limit": -5}},
        {"type": "read", "query": {"type": "live_uploads", "file_uuids": ["x"] * 501}},
    ],
)
def test_call_beyond_a_bound_is_refused(call: object) -> None:
    with pytest.raises(InvalidRequest, match="malformed"):
        wire.decode_call(msgspec.msgpack.encode(call))


def _with(command: commands.Command, **changes: object) -> bytes:
    """A proposal whose command has values that no constructor of ours would check."""
    fields = msgspec.to_builtins(command) | changes
    proposal = {"type": "propose", "session": 0, "sequence": 0, "acknowledged_below": 0, "command": fields}
    return msgspec.msgpack.encode(proposal)


def test_the_table_above_names_every_command_of_nodes() -> None:
    assert {type(command) for command in EVERY_NODE_COMMAND} == set(commands.NODE_COMMANDS)


def test_every_number_text_and_list_of_a_command_is_bounded() -> None:
    for command in EVERY_NODE_COMMAND:
        assert wire.decode_call(_with(command))
        for field in msgspec.structs.fields(command):
            value = getattr(command, field.name)
            beyond: list[object] = []
            if isinstance(value, bool):
                continue
            if isinstance(value, int):
                beyond = [-1, 2**53, 2**63, 2**64 - 1]
            elif isinstance(value, str):
                beyond = ["x" * 1025]
            elif isinstance(value, list):
                beyond = [["x"] * 65, ["x" * 1025]]
            for wrong in beyond:
                with pytest.raises(InvalidRequest):
                    wire.decode_call(_with(command, **{field.name: wrong}))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="malformed"):
        wire.decode(b"\x91" * 100_000)
