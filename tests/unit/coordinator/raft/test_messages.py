"""Raft messages on the wire: what a decoder takes, and what it refuses before the core sees it."""

import msgspec
import pytest

from coordinator.raft.messages import APPEND_ENTRIES_LIMIT, Entry, EntryKind, Message, MessageKind


def test_message_survives_the_wire() -> None:
    message = Message(
        MessageKind.APPEND,
        "a",
        "b",
        3,
        log_index=1,
        log_term=1,
        commit=1,
        entries=(Entry(2, 3, EntryKind.COMMAND, b"x"),),
    )
    decoder = msgspec.msgpack.Decoder(Message)

    assert decoder.decode(msgspec.msgpack.encode(message)) == message


@pytest.mark.parametrize(
    "fields",
    [
        [99, "a", "b", 1],
        [5, "a", "b", -1],
        [5, "a", "b", 2**63],
        [5, "a" * 129, "b", 1],
        [5, "a", "b", 1, 0, 0, 0, 0, 0, 0, False, False, [[1, 1, 9, b""]]],
        [5, "a", "b", 1, 0, 0, 0, 0, 0, 0, False, False, [[1, 1, 0, b""]] * (APPEND_ENTRIES_LIMIT + 1)],
        [5, "a", "b", "1"],
    ],
    ids=["kind", "negative", "huge", "long id", "entry kind", "too many entries", "type"],
)
def test_malformed_message_is_refused_by_the_decoder(fields: list[object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(fields), type=Message)
