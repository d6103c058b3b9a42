"""Raft messages as frames of `metadata.rpc.wire`. No I/O here.

Tested by tests/unit/metadata/rpc/test_wire.py.
"""

from collections.abc import Iterable

import msgspec

from coordinator.raft.messages import Message
from metadata.rpc import wire

_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def frame_of(message: Message) -> wire.RaftFrame:
    """Return the frame of one message."""
    return wire.RaftFrame(msgspec.Raw(_encoder.encode(message)))


def messages_in(frames: Iterable[wire.Frame]) -> list[Message]:
    """Return the messages of frames. Raises InvalidRequest on another frame or a malformed message."""
    found = []
    for frame in frames:
        if not isinstance(frame, wire.RaftFrame):
            raise wire.malformed_error("a frame that carries no Raft message")
        found.append(wire.decoded(_decoder, frame.message))
    return found
