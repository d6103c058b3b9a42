"""Verify the user token in a call of a member. Apart from the calls, which trust it.

A node forwards its users' tokens, so it can only do in a user's name what the token allows. The token is
removed before the command is proposed: the log never contains one.

Tested by tests/unit/coordinator/rpc/test_lying_members.py.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from ca.errors import Unauthorized
from ca.usertoken import Claims, Ticket, Verifier
from metadata.model.records import Caller, ClusterView
from metadata.protocol.commands import AnyCommand, CompleteUpload, DeclareSize, RecordProgress, RewindUpload
from metadata.protocol.queries import AnyQuery, GetTicketContent

# An upload may outlast the token that it began with: at its end, only the signature and the generation count.
UNDER_WAY = (RecordProgress, RewindUpload, DeclareSize, CompleteUpload)

_T = TypeVar("_T", AnyCommand, AnyQuery)


class CallerVerifier:
    """Verifies callers with the keys of the view of the cluster, at the time of `clock_ms`."""

    def __init__(self, view: Callable[[], ClusterView], clock_ms: Callable[[], int]) -> None:
        self._view = view
        self._clock_ms = clock_ms
        self._version = -1
        self._verifier: Verifier | None = None

    def verify(self, caller: Caller) -> Caller:
        """Return the caller without its token.

        Raises Unauthorized unless the token is valid now and is the caller's.
        """
        return _match(caller, self._newest().verify(caller.token, now_ms=self._clock_ms()))

    def verify_in(self, asked: _T) -> _T:
        """Return the command or query with its caller verified; unchanged if it has none."""
        caller = getattr(asked, "caller", None)
        if caller is None:
            return asked
        if isinstance(asked, GetTicketContent):
            caller = self._proved_by_ticket(asked)
        elif isinstance(asked, UNDER_WAY):
            caller = _match(caller, self._newest().verify_signature(caller.token, now_ms=self._clock_ms()))
        else:
            caller = self.verify(caller)
        return msgspec.structs.replace(asked, caller=caller)

    def _proved_by_ticket(self, asked: GetTicketContent) -> Caller:
        """Return the caller of a ticket.

        Raises Gone for an expired one, Unauthorized for one to another file.
        """
        ticket = self._newest().verify_ticket(asked.caller.token, now_ms=self._clock_ms())
        if ticket.file_uuid != asked.file_uuid:
            raise Unauthorized("a ticket to another file")
        return _match(asked.caller, ticket)

    def _newest(self) -> Verifier:
        view = self._view()
        if self._verifier is None or view.version != self._version:
            self._verifier = Verifier(view.cluster, view.user_token_keys, ends_at_ms=view.token_key_ends)
            self._version = view.version
        return self._verifier


def _match(caller: Caller, claims: Claims | Ticket) -> Caller:
    if (caller.subject, caller.generation) != (claims.subject, claims.generation):
        raise Unauthorized("a caller with the token of another")
    return caller.unsigned()
