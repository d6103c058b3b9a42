"""Every change to the replicated state, as data. The log holds these; `coordinator/machine` applies them.

The code that builds a command sets ids and random values, so that a retry has the same ones. The leader that
proposes it sets time (`Envelope.at_ms`) and placement. A field is only ever added, with a default: logs of
older versions must decode for ever. Fields hold values that were validated at the edge; the machine checks
them against state.
"""

from typing import TYPE_CHECKING, Any, Union

import msgspec
from msgspec import Struct

from metadata.protocol.commands.access import *
from metadata.protocol.commands.blobs import *
from metadata.protocol.commands.cluster import *
from metadata.protocol.commands.files import *
from metadata.protocol.commands.jobs import *
from metadata.protocol.commands.people import *
from metadata.protocol.commands.root import ITSELF, NODES, Command, leaves
from metadata.protocol.commands.sign_in import *
from metadata.protocol.commands.snapshots import *
from metadata.protocol.commands.undo import *
from runtime.bounds import Count

SESSION_ENDED = "session_ended"  # the refusal code of a change whose session is gone

COMMANDS = tuple(leaves(Command))
if TYPE_CHECKING:
    AnyCommand = Command
else:
    AnyCommand = Union[COMMANDS]  # noqa: UP007  # as many as there are

NODE_COMMANDS = tuple(kind for kind in COMMANDS if kind.proposed_by in (NODES, ITSELF))
OWN_COMMANDS: tuple[Any, ...] = tuple(kind for kind in COMMANDS if kind.proposed_by == ITSELF)
LONG_COMMANDS = tuple(kind for kind in COMMANDS if kind.is_long)


class Envelope(Struct, frozen=True, array_like=True):
    """One log entry. `session` 0 means no duplicate suppression (the command is idempotent).

    `acknowledged_below`: the client has seen the replies of all smaller sequences, so they can be forgotten.
    """

    session: Count
    sequence: Count
    acknowledged_below: Count
    at_ms: Count
    command: AnyCommand


class Reply(Struct, frozen=True, array_like=True):
    """The result of applying a command or a query.

    `refusal` is an error code, or "" with a `value`.
    """

    refusal: str
    details: str
    value: msgspec.Raw


_ENVELOPE_ENCODER = msgspec.msgpack.Encoder()
_ENVELOPE_DECODER = msgspec.msgpack.Decoder(Envelope)


class _Kind(Struct, frozen=True, rename={"tag": "type"}):
    """The kind of an encoded command."""

    tag: str


class _EnvelopeOf(Struct, frozen=True, array_like=True):
    session: Count
    sequence: Count
    acknowledged_below: Count
    at_ms: Count
    command: _Kind


_KIND_DECODER = msgspec.msgpack.Decoder(_EnvelopeOf)
_LONG_TAGS = frozenset(command.__struct_config__.tag for command in LONG_COMMANDS)


def encode_envelope(envelope: Envelope) -> bytes:
    """The bytes of a log entry (MessagePack)."""
    return _ENVELOPE_ENCODER.encode(envelope)


def decode_envelope(data: bytes) -> Envelope:
    """The envelope in a log entry. Raises msgspec.MsgspecError on bytes that no version of ours wrote."""
    return _ENVELOPE_DECODER.decode(data)


def is_long(data: bytes) -> bool:
    """Whether a log entry's command is one of LONG_COMMANDS; the rest of it is not decoded."""
    return _KIND_DECODER.decode(data).command.tag in _LONG_TAGS
