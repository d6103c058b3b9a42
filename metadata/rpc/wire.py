"""The format of messages between members over a WebSocket: frames in MessagePack. No I/O here.

A message has several frames and begins with the version. Frames have types and bounds. If a frame does not
decode, it is rejected and the connection ends. Calls are the exception: they are decoded separately, so that
one bad call fails alone. Pickle is not used.
"""

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from ca.errors import InvalidRequest
from metadata.protocol.calls import AnyCall

WIRE_VERSION = 1
FRAMES_MAX = 512  # in one parcel
PARCEL_BYTES_MAX = 4 << 20  # of frames that travel together; a larger one travels alone
FRAME_BYTES_MAX = 12 << 20  # an append holds at most 2 MiB of entries, or one entry of 8 MiB
MESSAGE_BYTES_MAX = 16 << 20  # of one WebSocket message: more than any parcel
DETAILS_CHARS_MAX = 4096
CALL_TIMEOUT_MS_MAX = 60_000
REQUEST_ID_CHARS_MAX = 128  # as in `web.responses.request_id`
NOT_LEADER = "not_leader"  # a status of AnswerFrame: `details` names the leader, or is "" when there is none
RETRY = "retry"  # this coordinator cannot answer now; the same call may succeed here or elsewhere
OK = ""

_T = TypeVar("_T")
_CallNumber = Annotated[int, Meta(ge=0, le=2**62)]


class CallFrame(Struct, frozen=True, array_like=True, tag=1):
    """A call, encoded by `encode_call`; `number` pairs it with its answer.

    The caller waits `timeout_ms` at most. `request_id` is that of the request that it works for, "" for none.
    """

    number: _CallNumber
    timeout_ms: Annotated[int, Meta(ge=0, le=CALL_TIMEOUT_MS_MAX)]
    call: bytes
    request_id: Annotated[str, Meta(max_length=REQUEST_ID_CHARS_MAX)] = ""


class AnswerFrame(Struct, frozen=True, array_like=True, tag=2):
    """The answer to a call.

    `status` is OK with a `value` in MessagePack, NOT_LEADER, RETRY, or an error code.
    """

    number: _CallNumber
    status: Annotated[str, Meta(max_length=64)]
    details: Annotated[str, Meta(max_length=DETAILS_CHARS_MAX)]
    value: bytes


class RaftFrame(Struct, frozen=True, array_like=True, tag=3):
    """One Raft message, encoded: the coordinators' Raft transport knows what is in it."""

    message: msgspec.Raw


Frame = CallFrame | AnswerFrame | RaftFrame


class Parcel(Struct, frozen=True, array_like=True):
    """One WebSocket message: frames that were ready together go out together."""

    version: int
    frames: Annotated[list[Frame], Meta(max_length=FRAMES_MAX)]


class _Encoded(Struct, frozen=True, array_like=True):
    version: int
    frames: list[msgspec.Raw]


_encoder = msgspec.msgpack.Encoder()
MALFORMED: Final = "malformed message from a peer"  # the text that the peer receives: see MetadataClient

_parcel_decoder = msgspec.msgpack.Decoder(Parcel)
_call_decoder: msgspec.msgpack.Decoder[AnyCall] = msgspec.msgpack.Decoder(AnyCall)


class FrameTooLarge(ValueError):
    """A frame of more than FRAME_BYTES_MAX, which no peer would take."""


def encode_frame(frame: Frame) -> bytes:
    """One frame, to be sent in a parcel. Raises FrameTooLarge."""
    data = _encoder.encode(frame)
    if len(data) > FRAME_BYTES_MAX:
        raise FrameTooLarge(f"a frame of {len(data)} bytes")
    return data


def encode_parcel(frames: list[bytes]) -> bytes:
    """One message of encoded frames, which together stay below MESSAGE_BYTES_MAX."""
    assert 0 < len(frames) <= FRAMES_MAX
    return _encoder.encode(_Encoded(WIRE_VERSION, [msgspec.Raw(frame) for frame in frames]))


def decode(data: bytes) -> list[Frame]:
    """The frames of one message. Raises InvalidRequest on another version or anything malformed."""
    parcel = decoded(_parcel_decoder, data)
    if parcel.version != WIRE_VERSION:
        raise InvalidRequest(
            f"a peer uses version {parcel.version} of the wire format, this member {WIRE_VERSION}"
        )
    return parcel.frames


def encode_call(call: AnyCall) -> bytes:
    """Encode the call of a CallFrame."""
    return _encoder.encode(call)


def decode_call(data: bytes) -> AnyCall:
    """Decode the call of a CallFrame. Raises InvalidRequest if it is malformed or beyond a bound."""
    return decoded(_call_decoder, data)


def decoded(decoder: "msgspec.msgpack.Decoder[_T]", data: bytes | msgspec.Raw) -> _T:
    """Decode data. Raises InvalidRequest if it is malformed or beyond a bound."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is no UTF-8
        raise malformed_error(error) from error


def malformed_error(why: object) -> InvalidRequest:
    """Return the error for a message that does not decode."""
    return InvalidRequest(f"{MALFORMED}: {why}")
