"""Frames between members: what is sent arrives, and nothing else decodes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import InvalidRequest
from coordinator import wire
from coordinator.calls import HeartbeatCall, ProposeCall
from coordinator.commands import OpenSession
from coordinator.raft.messages import Message, MessageKind

CALL = wire.CallFrame(1, 2000, ProposeCall(0, 0, 0, OpenSession(nonce="n")))
ANSWER = wire.AnswerFrame(1, wire.OK, "", b"\x00")
RAFT = wire.RaftFrame(Message(MessageKind.HEARTBEAT, "c1", "c2", 3))


def test_frames_of_all_kinds_travel_together() -> None:
    assert wire.decode(wire.encode([CALL, ANSWER, RAFT])) == [CALL, ANSWER, RAFT]


def test_other_version_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="version 2"):
        wire.decode(msgspec.msgpack.encode(wire.Parcel(2, [ANSWER])))


@pytest.mark.parametrize(
    "frames",
    [
        [[9, 1]],
        [[1, -1, 2000, {"type": "heartbeat"}]],
        [[1, 1, 2000, {"type": "no_such_call"}]],
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
    data = bytearray(wire.encode([CALL, RAFT, wire.CallFrame(2, 1, HeartbeatCall(1, 2, 3))]))
    data[place % len(data)] = byte
    try:
        wire.decode(bytes(data))
    except InvalidRequest:
        return


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="malformed"):
        wire.decode(b"\x91" * 100_000)
