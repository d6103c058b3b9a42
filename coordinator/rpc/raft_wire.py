"""Raft messages as the frames of `metadata.rpc.wire` carry them. No I/O here."""

from collections.abc import Iterable

import msgspec

from coordinator.raft.messages import Message
from metadata.rpc import wire

_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def frame_of(message: Message) -> wire.RaftFrame:
    """The frame of one message."""
    return wire.RaftFrame(msgspec.Raw(_encoder.encode(message)))


def messages_in(frames: Iterable[wire.Frame]) -> list[Message]:
    """The messages of frames. Raises InvalidRequest on another frame or a malformed message."""
    found = []
    for frame in frames:
        if not isinstance(frame, wire.RaftFrame):
            raise wire.malformed("a frame that carries no Raft message")
        found.append(wire.decoded(_decoder, frame.message))
    return found
