"""What the coordinator that leads signs with the key of user tokens, dated by the clock that it goes by.

Nothing here is recorded, and nobody is asked: whoever calls has proved the caller, and read the user.
"""

import uuid_utils

from ca.usertoken import TTL_SECONDS_DEFAULT
from coordinator.admin.authority import SigningAuthority
from coordinator.member.member_clocks import MemberClocks
from coordinator.model.records import Caller, UserRecord
from coordinator.protocol.calls import MintReply, TicketReply


class UserTokens:
    """Signs. No I/O but a look at the state for the newest key."""

    def __init__(self, authority: SigningAuthority, clocks: MemberClocks) -> None:
        self._authority = authority
        self._clocks = clocks

    def token(self, user: UserRecord, ttl_seconds: int) -> MintReply:
        """A token with the rights that the record tells; 0 seconds stand for the default.

        Raises InvalidRequest as `ca.usertoken.mint` does.
        """
        at_ms = self._clocks.now_ms()
        ttl_seconds = ttl_seconds or TTL_SECONDS_DEFAULT
        token = self._authority.sign_user_token(
            subject=user.user_id,
            generation=user.generation,
            roles=tuple(user.roles),
            groups=tuple(user.groups),
            at_ms=at_ms,
            ttl_seconds=ttl_seconds,
            token_id=str(uuid_utils.uuid7()),
        )
        return MintReply(token, user.user_id, _end_ms(at_ms, ttl_seconds), user.roles, user.groups)

    def ticket(self, caller: Caller, file_uuid: str, ttl_seconds: int) -> TicketReply:
        """A ticket to one file, which stands for the caller. Raises InvalidRequest by its life."""
        at_ms = self._clocks.now_ms()
        ticket = self._authority.sign_ticket(
            subject=caller.subject,
            generation=caller.generation,
            file_uuid=file_uuid,
            at_ms=at_ms,
            ttl_seconds=ttl_seconds,
        )
        return TicketReply(ticket, _end_ms(at_ms, ttl_seconds))


def _end_ms(at_ms: int, ttl_seconds: int) -> int:
    """Tokens have whole seconds."""
    return (at_ms // 1000 + ttl_seconds) * 1000
