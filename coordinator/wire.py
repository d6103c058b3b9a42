"""What travels between members over a WebSocket: frames in MessagePack, several to a message. No I/O here.

Every message begins with the version. Frames have types and bounds; whatever does not decode is refused and
ends the connection. Pickle is nowhere.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ca.errors import InvalidRequest
from coordinator.calls import AnyCall
from coordinator.raft.messages import Message

WIRE_VERSION = 1
FRAMES_MAX = 4096  # in one message
MESSAGE_BYTES_MAX = 16 << 20  # an append holds at most 2 MiB of entries, or one entry of 8 MiB
NOT_LEADER = "not_leader"  # a status of AnswerFrame: `details` names the leader, or is "" when there is none
RETRY = "retry"  # this coordinator cannot answer now; the same call may succeed here or elsewhere
OK = ""

_CallNumber = Annotated[int, Meta(ge=0, le=2**62)]


class CallFrame(Struct, frozen=True, array_like=True, tag=1):
    """A call; `number` pairs it with its answer. The caller waits `timeout_ms` at most."""

    number: _CallNumber
    timeout_ms: Annotated[int, Meta(ge=0, le=600_000)]
    call: AnyCall


class AnswerFrame(Struct, frozen=True, array_like=True, tag=2):
    """The answer to a call:

    `status` is OK with a `value` in MessagePack, NOT_LEADER, RETRY, or an error code.
    """

    number: _CallNumber
    status: Annotated[str, Meta(max_length=64)]
    details: Annotated[str, Meta(max_length=4096)]
    value: bytes


class RaftFrame(Struct, frozen=True, array_like=True, tag=3):
    """One Raft message."""

    message: Message


Frame = CallFrame | AnswerFrame | RaftFrame


class Parcel(Struct, frozen=True, array_like=True):
    """One WebSocket message: frames that were ready together go out together."""

    version: int
    frames: Annotated[list[Frame], Meta(max_length=FRAMES_MAX)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Parcel)


def encode(frames: list[Frame]) -> bytes:
    """The bytes of one message."""
    assert 0 < len(frames) <= FRAMES_MAX
    return _encoder.encode(Parcel(WIRE_VERSION, frames))


def decode(data: bytes) -> list[Frame]:
    """The frames of one message. Raises InvalidRequest on another version or anything malformed."""
    try:
        parcel = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is no UTF-8
        raise InvalidRequest(f"malformed message from a peer: {error}") from error
    if parcel.version != WIRE_VERSION:
        raise InvalidRequest(
            f"a peer speaks version {parcel.version} of the wire, this member {WIRE_VERSION}"
        )
    return parcel.frames
