"""The changes that a leader may propose, and their entries in the log. No I/O here.

Tested by tests/unit/coordinator/machine/execution/test_states.py.
"""

from typing import Final

from ca.errors import PayloadTooLarge
from metadata.model import rules
from metadata.protocol import commands
from metadata.protocol.commands import AnyCommand, Envelope, encode_envelope

COMMAND_BYTES_MAX: Final = 1 << 20  # no API body is larger, and no command larger than its body

# These free room, are needed to free it, or disarm a thief: a leader without room accepts them.
_FREEING: Final = (
    commands.OpenSession,
    commands.DeleteFile,
    commands.TerminateUpload,
    commands.DeleteJoinToken,
    commands.DeleteBucket,
    commands.DeleteUser,
    commands.RevokeUser,
    commands.RevokeNode,
    commands.WithdrawPermission,
    commands.RevokePublicToken,
    commands.CancelRun,
    commands.StartRun,
    commands.RecordRun,
    commands.Expire,
    commands.MarkNode,
    commands.RecountReplicas,
    commands.Collect,
    commands.CollectOverQuota,
    commands.ReleaseReplica,
    commands.ReportDropped,
    commands.ReportOrphans,
    commands.ReportDamaged,
    commands.ReportLost,
    commands.AddReplica,
    commands.PlaceUpload,
)
_ENDING: Final = (commands.Expire, commands.Collect, commands.CollectOverQuota)


def check_known(command: AnyCommand, in_force: int) -> None:
    """Raise NotInForce while a member may not know this command yet, by the rules in force."""
    rules.require(command.rules_needed, in_force)


def frees(command: AnyCommand) -> bool:
    """Return whether a leader whose disk is full accepts this command."""
    return isinstance(command, _FREEING) or (isinstance(command, commands.PutUser) and bool(command.disabled))


def is_ending(command: AnyCommand) -> bool:
    """Return whether it ends expired records, which must not happen early because of a wrong clock."""
    return isinstance(command, _ENDING)


def encode_entry(
    command: AnyCommand, session: int, sequence: int, acknowledged_below: int, *, at_ms: int
) -> bytes:
    """Return the log entry's data. Raises PayloadTooLarge."""
    assert not getattr(getattr(command, "caller", None), "token", ""), "a user token on its way to the log"
    data = encode_envelope(Envelope(session, sequence, acknowledged_below, at_ms, command))
    if len(data) > COMMAND_BYTES_MAX:
        raise PayloadTooLarge(f"A change may have at most {COMMAND_BYTES_MAX} bytes.")
    return data
