"""Tokens of users, which the leading coordinator signs and dates by its effective clock.

The calling code has authenticated the caller, and read the user. The session of a token is recorded before
the token is signed; a ticket is not recorded.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import uuid_utils

from ca.errors import Forbidden, InvalidRequest
from ca.usertoken import SERVICE_ROLE, SERVICE_TTL_SECONDS_MAX, TTL_SECONDS_DEFAULT, TTL_SECONDS_MAX
from coordinator.admin.authority import SigningAuthority
from coordinator.member.driver import Driver
from coordinator.member.member_clocks import MemberClocks
from coordinator.raft.core import NotLeader
from coordinator.rpc.caller_proof import CallerVerifier
from coordinator.rpc.server import value_of
from metadata.model.records import Caller, UserRecord
from metadata.model.rules import LONG_SERVICE_TOKENS, SESSIONS_ARE_RECORDED, NotInForce
from metadata.protocol.calls import (
    MintCall,
    MintReply,
    RedeemCall,
    RenewTokenCall,
    TicketCall,
    TicketReply,
)
from metadata.protocol.commands import AdmitUser, RecordSession, RedeemInvitation
from metadata.protocol.people_queries import FindProviderOfUser
from metadata.protocol.queries import AnyQuery, CheckAdmin, GetContent, GetUser

LABEL_DEFAULT: Final = "token"  # of a session whose maker has said nothing


class UserTokens:
    """Signs tokens. Records the session of each before.

    A token lives for `ttl_s_max` at most, that of a user with the role `service` for `service_ttl_s_max`.
    `rules` returns the rules in force: older members reject tokens that live longer than 30 days, and do not
    know sessions.
    """

    def __init__(
        self,
        authority: SigningAuthority,
        clocks: MemberClocks,
        driver: Driver,
        *,
        ttl_s_max: int,
        service_ttl_s_max: int,
        rules: Callable[[], int],
    ) -> None:
        self._authority = authority
        self._clocks = clocks
        self._driver = driver
        self._ttl_s_max = ttl_s_max
        self._service_ttl_s_max = service_ttl_s_max
        self._rules = rules

    async def mint(self, user: UserRecord, ttl_seconds: int, *, created_by: str, label: str) -> MintReply:
        """Return the token that an admin creates for the user; 0 seconds mean 12 hours, or the maximum.

        Raises as `issue`.
        """
        life_s = ttl_seconds or min(TTL_SECONDS_DEFAULT, self._longest(user))
        return await self.issue(user, ttl_seconds=life_s, created_by=created_by, label=label)

    async def issue(
        self, user: UserRecord, *, ttl_seconds: int, created_by: str, label: str, session_id: str = ""
    ) -> MintReply:
        """Return a token of the user; 0 seconds mean 30 days, or the maximum.

        `label`: a name of the session, for people. `session_id`: "" begins a new session.

        Raises InvalidRequest for a longer life than the user's tokens may have. Raises NotInForce for more
        than 30 days while older coordinators are among the members. Raises Unauthorized for a session that
        was ended, Conflict for too many sessions.
        """
        ttl_seconds = ttl_seconds or min(TTL_SECONDS_MAX, self._longest(user))
        self._check_life(user, ttl_seconds)
        token_id = str(uuid_utils.uuid7())
        session_id = session_id or token_id
        if self._rules() >= SESSIONS_ARE_RECORDED:
            recorded = RecordSession(
                user_id=user.user_id,
                generation=user.generation,
                session_id=session_id,
                label=label,
                created_by=created_by,
                ttl_seconds=ttl_seconds,
            )
            value_of(await self._driver.propose(recorded))
        at_ms = self._clocks.now_ms()
        token = self._authority.sign_user_token(
            subject=user.user_id,
            generation=user.generation,
            roles=tuple(user.roles),
            groups=tuple(user.groups),
            at_ms=at_ms,
            ttl_seconds=ttl_seconds,
            token_id=token_id,
            session_id=session_id,
        )
        return MintReply(token, user.user_id, _end_ms(at_ms, ttl_seconds), user.roles, user.groups)

    async def sign_in(self, user: UserRecord, ttl_seconds: int, label: str, session_id: str) -> MintReply:
        """Return a token of a user who signs in; it lives for this long, or for the maximum.

        `session_id`: a new one, or that of the token that this one renews. Raises as `issue`.
        """
        return await self.issue(
            user,
            ttl_seconds=min(ttl_seconds, self._ttl_s_max),
            created_by=user.user_id,
            label=label,
            session_id=session_id,
        )

    def _longest(self, user: UserRecord) -> int:
        return self._service_ttl_s_max if SERVICE_ROLE in user.roles else self._ttl_s_max

    def _check_life(self, user: UserRecord, ttl_seconds: int) -> None:
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

    def ticket(self, caller: Caller, file_uuid: str, ttl_seconds: int) -> TicketReply:
        """Return a ticket to one file, which stands for the caller. Raises InvalidRequest for its life."""
        at_ms = self._clocks.now_ms()
        ticket = self._authority.sign_ticket(
            subject=caller.subject,
            generation=caller.generation,
            session_id=caller.session,
            file_uuid=file_uuid,
            at_ms=at_ms,
            ttl_seconds=ttl_seconds,
        )
        return TicketReply(ticket, _end_ms(at_ms, ttl_seconds))


class TokenCalls:
    """Answers the calls for tokens and tickets. Of the leader alone: only it knows the time."""

    def __init__(
        self,
        tokens: UserTokens,
        callers: CallerVerifier,
        driver: Driver,
        *,
        read: Callable[[AnyQuery], Awaitable[bytes]],
    ) -> None:
        """`read` answers a query behind a read barrier, for its caller as it is in the state then."""
        self._tokens = tokens
        self._callers = callers
        self._driver = driver
        self._read = read

    async def answer(self, call: MintCall | RenewTokenCall | RedeemCall | TicketCall) -> object:
        """Return the reply. Raises NotLeader, Refused, or a FilestoreError."""
        if not self._driver.is_leader:
            raise NotLeader(self._driver.leader)
        match call:
            case MintCall():
                return await self._mint(call)
            case RenewTokenCall():
                return await self._renew(call)
            case RedeemCall():
                return await self._redeem(call)
            case TicketCall():
                await self._read(GetContent(caller=call.caller, file_uuid=call.file_uuid))
                caller = self._callers.verify(call.caller)
                return self._tokens.ticket(caller, call.file_uuid, call.ttl_seconds)

    async def _mint(self, call: MintCall) -> MintReply:
        # required for any reply, which may be that of an earlier change
        await self._read(CheckAdmin(caller=call.caller))
        if call.ttl_seconds > SERVICE_TTL_SECONDS_MAX:
            raise InvalidRequest(f"ttl_seconds: at most {SERVICE_TTL_SECONDS_MAX}.")
        caller = self._callers.verify(call.caller)
        command = AdmitUser(caller=caller, user_id=call.user_id, roles=call.roles, groups=call.groups)
        user = await self._changed(command, call)
        return await self._tokens.mint(
            user, call.ttl_seconds, created_by=caller.subject, label=call.label or LABEL_DEFAULT
        )

    async def _renew(self, call: RenewTokenCall) -> MintReply:
        # A user who was already revoked is rejected; later revocations end the generation of the new token.
        user = msgspec.msgpack.decode(await self._read(GetUser(caller=call.caller)), type=UserRecord)
        provider = msgspec.msgpack.decode(await self._read(FindProviderOfUser(user_id=user.user_id)))
        if provider:
            raise Forbidden(f"You sign in with {provider}, which also renews your tokens.")
        session_id = self._callers.verify(call.caller).session
        return await self._tokens.issue(
            user,
            ttl_seconds=call.ttl_seconds,
            created_by=user.user_id,
            label=LABEL_DEFAULT,
            session_id=session_id,
        )

    async def _redeem(self, call: RedeemCall) -> MintReply:
        user = await self._changed(RedeemInvitation(secret_sha256=call.secret_sha256), call)
        return await self._tokens.issue(user, ttl_seconds=0, created_by=user.user_id, label=call.label)

    async def _changed(
        self, command: AdmitUser | RedeemInvitation, call: MintCall | RedeemCall
    ) -> UserRecord:
        reply = await self._driver.propose(
            command,
            session=call.session,
            sequence=call.sequence,
            acknowledged_below=call.acknowledged_below,
        )
        return msgspec.msgpack.decode(value_of(reply), type=UserRecord)


def _end_ms(at_ms: int, ttl_seconds: int) -> int:
    """Return the end of a token, in whole seconds."""
    return (at_ms // 1000 + ttl_seconds) * 1000
