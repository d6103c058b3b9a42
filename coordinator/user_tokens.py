"""Sign with the key of user tokens, on the leading coordinator, dated by its effective clock.

Nothing here is recorded, and no other member is asked: the calling code has authenticated the caller, and
read the user.
"""

from collections.abc import Callable

import uuid_utils

from ca.errors import InvalidRequest
from ca.usertoken import SERVICE_ROLE, TTL_SECONDS_DEFAULT, TTL_SECONDS_MAX
from coordinator.admin.authority import SigningAuthority
from coordinator.member.member_clocks import MemberClocks
from metadata.model.records import Caller, UserRecord
from metadata.model.rules import LONG_SERVICE_TOKENS, NotInForce
from metadata.protocol.calls import MintReply, TicketReply


class UserTokens:
    """Signs tokens. No I/O but a look at the state for the newest key.

    A token lives for `ttl_s_max` at most, that of a user with the role `service` for `service_ttl_s_max`.
    `rules` returns the rules in force: older members reject tokens that live longer than 30 days.
    """

    def __init__(
        self,
        authority: SigningAuthority,
        clocks: MemberClocks,
        *,
        ttl_s_max: int,
        service_ttl_s_max: int,
        rules: Callable[[], int],
    ) -> None:
        self._authority = authority
        self._clocks = clocks
        self._ttl_s_max = ttl_s_max
        self._service_ttl_s_max = service_ttl_s_max
        self._rules = rules

    def mint(self, user: UserRecord, ttl_seconds: int) -> MintReply:
        """Return the token that an admin creates for the user; 0 seconds mean 12 hours, or the maximum.

        Raises InvalidRequest for a longer life than the user's tokens may have, and Unavailable for more than
        30 days while older coordinators are among the members.
        """
        return self._token(user, ttl_seconds or min(TTL_SECONDS_DEFAULT, self._longest(user)))

    def renew(self, user: UserRecord, ttl_seconds: int) -> MintReply:
        """Return another token for the user; 0 seconds mean 30 days, or the maximum. Raises as `mint`."""
        return self._token(user, ttl_seconds or min(TTL_SECONDS_MAX, self._longest(user)))

    def sign_in(self, user: UserRecord, ttl_seconds: int) -> MintReply:
        """Return the token of a user whom a provider knows; it lives for this long, or for the maximum."""
        return self._token(user, min(ttl_seconds, self._ttl_s_max))

    def _longest(self, user: UserRecord) -> int:
        return self._service_ttl_s_max if SERVICE_ROLE in user.roles else self._ttl_s_max

    def _token(self, user: UserRecord, ttl_seconds: int) -> MintReply:
        longest = self._longest(user)
        if ttl_seconds > longest:
            raise InvalidRequest(
                f"ttl_seconds: at most {longest} for this user; the role {SERVICE_ROLE} allows"
                f" {self._service_ttl_s_max}."
            )
        if ttl_seconds > TTL_SECONDS_MAX and self._rules() < LONG_SERVICE_TOKENS:
            raise NotInForce(
                f"ttl_seconds: at most {TTL_SECONDS_MAX} until every coordinator is known to support more."
                " Upgrade members that run an older version, start those that are down, and remove those"
                " that are gone."
            )
        at_ms = self._clocks.now_ms()
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
        """Return a ticket to one file, which stands for the caller. Raises InvalidRequest for its life."""
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
    """Return the end of a token, in whole seconds."""
    return (at_ms // 1000 + ttl_seconds) * 1000
