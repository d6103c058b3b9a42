"""Frames between members: what is sent arrives, and nothing else decodes."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from ca.errors import InvalidRequest
from coordinator.raft.messages import Message, MessageKind
from coordinator.rpc.raft_wire import frame_of, messages_in
from metadata.protocol import commands
from metadata.protocol.calls import ProposeCall
from metadata.protocol.commands import OpenSession
from metadata.rpc import wire

PROPOSAL = ProposeCall(0, 0, 0, OpenSession(nonce="n"))
CALL = wire.CallFrame(1, 2000, wire.encode_call(PROPOSAL))
ANSWER = wire.AnswerFrame(1, wire.OK, "", b"\x00")
RAFT = frame_of(Message(MessageKind.HEARTBEAT, "c1", "c2", 3))


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
        messages_in(wire.decode(msgspec.msgpack.encode([wire.WIRE_VERSION, frames])))


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


def _example(kind: inspect.Type) -> Any:
    """A value of a field's type, in its encoded form."""
    match kind:
        case inspect.UnionType():
            return _example(next(part for part in kind.types if not isinstance(part, inspect.NoneType)))
        case inspect.StructType(array_like=True):
            return [_example(field.type) for field in kind.fields]
        case inspect.StructType():
            told = {kind.tag_field: kind.tag} if kind.tag_field else {}
            return told | {field.encode_name: _example(field.type) for field in kind.fields}
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.ListType():
            return [_example(kind.item_type)] * (kind.min_length or 0)
        case inspect.TupleType():
            return [_example(part) for part in kind.item_types]
        case inspect.IntType():
            return 1
        case inspect.BoolType():
            return False
        case inspect.BytesType():
            return b"x"
    assert isinstance(kind, inspect.StrType), f"what bounds {kind}?"
    return "x"


def _beyond(kind: inspect.Type) -> list[Any]:
    """Values that no bounded field of this type takes."""
    match kind:
        case inspect.UnionType():
            return [wrong for part in kind.types for wrong in _beyond(part)]
        case inspect.IntType():
            assert kind.le is not None
            assert kind.ge is not None
            return [kind.ge - 1, kind.le + 1, 2**63, 2**64 - 1]
        case inspect.StrType():
            assert kind.max_length is not None
            return ["x" * (kind.max_length + 1)]
        case inspect.BytesType():
            assert kind.max_length is not None
            return [b"x" * (kind.max_length + 1)]
        case inspect.ListType():
            assert kind.max_length is not None
            return [
                [_example(kind.item_type)] * (kind.max_length + 1),
                *([w] for w in _beyond(kind.item_type)),
            ]
        case inspect.TupleType():
            whole = _example(kind)
            return [
                *(
                    [*whole[:at], wrong, *whole[at + 1 :]]
                    for at, part in enumerate(kind.item_types)
                    for wrong in _beyond(part)
                ),
                [*whole, *whole],
            ]
        case inspect.LiteralType():
            return ["x"]
        case inspect.StructType() if not kind.array_like:
            whole = _example(kind)
            return [whole | {part.encode_name: wrong} for part in kind.fields for wrong in _beyond(part.type)]
    return []


def _proposal(fields: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(
        {"type": "propose", "session": 0, "sequence": 0, "acknowledged_below": 0, "command": fields}
    )


@pytest.mark.parametrize("command", commands.NODE_COMMANDS, ids=lambda command: command.__name__)
def test_every_number_text_and_list_of_a_command_is_bounded(command: type[commands.Command]) -> None:
    kind = inspect.type_info(command)
    assert isinstance(kind, inspect.StructType)
    whole = _example(kind) | {"type": kind.tag}
    assert wire.decode_call(_proposal(whole))
    for field in kind.fields:
        for wrong in _beyond(field.type):
            with pytest.raises(InvalidRequest):
                wire.decode_call(_proposal(whole | {field.encode_name: wrong}))


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="malformed"):
        wire.decode(b"\x91" * 100_000)


def test_call_of_a_member_that_sends_no_request_id_is_taken() -> None:
    old = msgspec.msgpack.encode([wire.WIRE_VERSION, [[1, 7, 2000, wire.encode_call(PROPOSAL)]]])
    assert wire.decode(old) == [wire.CallFrame(7, 2000, wire.encode_call(PROPOSAL), "")]


def test_request_id_beyond_its_bound_is_refused() -> None:
    frame = wire.CallFrame(7, 2000, b"", "x" * (wire.REQUEST_ID_CHARS_MAX + 1))
    with pytest.raises(InvalidRequest):
        wire.decode(wire.encode_parcel([wire.encode_frame(frame)]))
