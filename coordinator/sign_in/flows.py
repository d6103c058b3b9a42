"""Sign-ins with identity providers: begun, finished, renewed and ended by the leading coordinator.

The code flow has PKCE (S256), a state and a nonce, which only the sealed attempt knows, and a redirect URI
for each provider. A code goes to the provider of its attempt alone, which must name itself if it can (RFC
9207). What comes out is an ordinary token of the cluster, valid for as long as the configuration of the
provider says. No token of a provider is stored or logged.
"""

import asyncio
import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec
import uuid_utils

from ca.errors import Conflict, Forbidden, Gone, InvalidRequest, NotFound, Unauthorized
from ca.idtoken import Expected, InvalidIdToken
from ca.keys import WrongClusterKey
from coordinator.admin.authority import SigningAuthority
from coordinator.machine.people.providers import find_sealed
from coordinator.member.member_clocks import MemberClocks
from coordinator.rpc.server import Refused
from coordinator.sign_in.examination import examine
from coordinator.sign_in.provider_client import DEVICE_GRANT, ProviderClient, Tokens
from coordinator.sign_in.sealing import SealedAttempt, SealedRenewal, seal, unseal
from coordinator.storage.state_store import Store
from metadata.model.providers import PersonIdentity, Provider, check_provider, identity_in
from metadata.model.records import Caller, UserRecord
from metadata.model.rules import PROVIDERS_SIGN_IN, require
from metadata.protocol.calls import MintReply
from metadata.protocol.commands import AdmitIdentity, AnyCommand, PutProvider
from metadata.protocol.people_queries import KnownIdentity, MatchIdentity
from metadata.protocol.queries import AnyQuery, CheckAdmin
from metadata.protocol.sign_in_calls import (
    EndSignInCall,
    FinishSignInCall,
    PutProviderCall,
    RenewSignInCall,
    SignInCall,
    SignInReply,
    StartSignInCall,
    StartSignInReply,
    TestProviderCall,
)
from runtime.bounds import LABEL_CHARS_MAX

ATTEMPT_MS: Final = 600_000  # for a person at the provider's page
AT_ONCE_MAX: Final = 32  # requests to providers; more wait, within their deadline
REMEMBERED_S: Final = 60.0  # repeats an answer that was lost: some providers give each once
REMEMBERED_MAX: Final = 1024
_DEVICE_SECONDS_MAX: Final = 1800
_DEVICE_INTERVAL_S: Final = 5  # RFC 8628, 3.2

# Signs a token of a user, for this many seconds, with the label and the id of its session.
Issue = Callable[[UserRecord, int, str, str], Awaitable[MintReply]]
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class StateAccess:
    """How the leader reads and changes the state, which raise Refused, and verifies a caller."""

    read: Callable[[AnyQuery], Awaitable[bytes]]
    change: Callable[[AnyCommand], Awaitable[bytes]]
    verify: Callable[[Caller], Caller]


class SignInFlows:
    """Answers the calls of `metadata.protocol.sign_in_calls`. The caller has made sure that it leads."""

    def __init__(
        self,
        store: Store,
        authority: SigningAuthority,
        issue: Issue,
        clocks: MemberClocks,
        *,
        is_development: Callable[[], bool],
    ) -> None:
        self._store = store
        self._authority = authority
        self._issue = issue
        self._clocks = clocks
        self._is_development = is_development
        self._clients: dict[str, tuple[tuple[Provider, bytes, bytes], ProviderClient]] = {}
        self._at_once = asyncio.Semaphore(AT_ONCE_MAX)
        self._renewing: dict[bytes, asyncio.Lock] = {}
        self._renewed: OrderedDict[bytes, tuple[SignInReply, float]] = OrderedDict()

    async def answer(self, call: SignInCall, state: StateAccess) -> bytes:
        """Return the answer in MessagePack. Raises Refused, and a FilestoreError."""
        require(PROVIDERS_SIGN_IN, self._store.rules())
        if isinstance(call, PutProviderCall):
            return await self._put(call, state)
        async with self._at_once:
            match call:
                case TestProviderCall():
                    await state.read(CheckAdmin(caller=call.caller))
                    return _encode(await examine(await self._client(call.name, is_new=True)))
                case StartSignInCall():
                    return _encode(await self._start(call))
                case FinishSignInCall():
                    return _encode(await self._finish(call, state))
                case RenewSignInCall():
                    return _encode(await self._renew(call, state))
                case EndSignInCall():
                    return _encode(await self._end(call))

    async def _put(self, call: PutProviderCall, state: StateAccess) -> bytes:
        await state.read(CheckAdmin(caller=call.caller))
        provider = call.provider
        check_provider(provider, is_development=self._is_development())
        command = PutProvider(
            caller=state.verify(call.caller),
            provider=provider,
            secret=self._sealed(provider, call.secret, is_command=False),
            command_secret=self._sealed(provider, call.command_secret, is_command=True),
        )
        return await state.change(command)

    def _sealed(self, provider: Provider, secret: str | None, *, is_command: bool) -> bytes:
        """Return a new secret sealed, or the present one, which stays with its issuer and client.

        Raises InvalidRequest if these have changed: else an administrator could have it sent elsewhere.
        """
        purpose = provider.purpose(is_command=is_command)
        if secret is not None:
            return self._authority.seal(secret.encode(), purpose=purpose) if secret else b""
        known = self._sealed_provider(provider.name)
        present = b"" if known is None else known[2] if is_command else known[1]
        if present:
            try:
                self._authority.unseal(present, purpose=purpose)
            except WrongClusterKey as error:
                field = "command_client_secret" if is_command else "client_secret"
                raise InvalidRequest(f"{field}: is required, as issuer or client have changed") from error
        return present

    def _sealed_provider(self, name: str) -> tuple[Provider, bytes, bytes] | None:
        return self._store.read_with(lambda db: find_sealed(db, name))

    async def _client(self, name: str, *, is_new: bool = False) -> ProviderClient:
        """Return the client of a provider as it is configured now. Raises NotFound."""
        stored = self._sealed_provider(name)
        if stored is None:
            self._clients.pop(name, None)
            raise NotFound("There is no such provider.")
        known = self._clients.get(name)
        if known is not None and known[0] == stored and not is_new:
            return known[1]
        provider, secret, command_secret = stored
        client = await ProviderClient.new(
            provider,
            secret=self._unsealed(provider, secret, is_command=False),
            command_secret=self._unsealed(provider, command_secret, is_command=True),
            is_development=self._is_development(),
        )
        self._clients[name] = stored, client
        return client

    def _unsealed(self, provider: Provider, sealed: bytes, *, is_command: bool) -> str:
        purpose = provider.purpose(is_command=is_command)
        return self._authority.unseal(sealed, purpose=purpose).decode() if sealed else ""

    async def _start(self, call: StartSignInCall) -> StartSignInReply:
        client = await self._client(call.provider)
        provider = client.provider
        attempt = SealedAttempt(
            provider=provider.name,
            issuer=provider.issuer,
            client_id=provider.client(is_command=call.flow != "console"),
            redirect_uri=call.redirect_uri,
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            device_code="",
            expires_at_ms=self._clocks.now_ms() + ATTEMPT_MS,
            label=f"{'console' if call.flow == 'console' else 'command'}, {provider.label}"[:LABEL_CHARS_MAX],
        )
        if call.flow == "device":
            return await self._start_device(client, attempt)
        endpoint = (await client.endpoints()).authorization
        digest = hashlib.sha256(attempt.verifier.encode()).digest()
        query = {
            "response_type": "code",
            "client_id": attempt.client_id,
            "redirect_uri": attempt.redirect_uri,
            "scope": " ".join(provider.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        joint = "&" if urlsplit(endpoint).query else "?"
        return StartSignInReply(
            authorization_url=f"{endpoint}{joint}{urlencode(query)}",
            attempt=seal(self._authority, attempt),
            state=attempt.state,
            expires_at_ms=attempt.expires_at_ms,
        )

    async def _start_device(self, client: ProviderClient, attempt: SealedAttempt) -> StartSignInReply:
        answer = await client.start_device(attempt.client_id, " ".join(client.provider.scopes))
        life_s = min(_whole(answer.fields.get("expires_in"), ATTEMPT_MS // 1000), _DEVICE_SECONDS_MAX)
        begun = msgspec.structs.replace(
            attempt,
            device_code=answer.text("device_code"),
            redirect_uri="",
            expires_at_ms=self._clocks.now_ms() + life_s * 1000,
        )
        return StartSignInReply(
            authorization_url=answer.text("verification_uri"),
            attempt=seal(self._authority, begun),
            state=begun.state,
            expires_at_ms=begun.expires_at_ms,
            user_code=answer.text("user_code"),
            complete_url=answer.text("verification_uri_complete"),
            interval_s=_whole(answer.fields.get("interval"), _DEVICE_INTERVAL_S),
        )

    async def _finish(self, call: FinishSignInCall, state: StateAccess) -> SignInReply | None:
        """Return the token, None while a device is not confirmed.

        Raises Forbidden for everything that is wrong with the sign-in, Gone for a late one.
        """
        client = await self._client(call.provider)
        attempt = unseal(self._authority, call.attempt, SealedAttempt)
        if (attempt.provider, attempt.issuer) != (call.provider, client.provider.issuer):
            raise Forbidden("This sign-in was begun with another provider.")
        if self._clocks.now_ms() >= attempt.expires_at_ms:
            raise Gone("This sign-in took too long. Start again.")
        if not hmac.compare_digest(call.state.encode(), attempt.state.encode()):
            raise Forbidden("This answer belongs to another sign-in: its state differs.")
        await _check_issuer(client, call.issuer, is_device=bool(attempt.device_code))
        tokens = await client.exchange(attempt.client_id, _grant(attempt, call.code))
        if tokens is None:
            return None
        nonce = None if attempt.device_code else attempt.nonce
        claims = await self._claims(client, attempt.client_id, tokens, nonce=nonce)
        user = await self._admitted(identity_in(client.provider, claims), state)
        renewal = SealedRenewal(
            provider=client.provider.name,
            issuer=client.provider.issuer,
            client_id=attempt.client_id,
            subject=str(claims["sub"]),
            user_id=user.user_id,
            generation=user.generation,
            session_id=str(uuid_utils.uuid7()),
            refresh_token=tokens.refresh_token,
        )
        return await self._signed_in(client.provider, user, renewal, attempt.label)

    async def _renew(self, call: RenewSignInCall, state: StateAccess) -> SignInReply:
        """Return another token. The same renewal once more gets the same answer for a while."""
        digest = hashlib.sha256(call.renewal.encode()).digest()
        lock = self._renewing.setdefault(digest, asyncio.Lock())
        try:
            async with lock:
                now_s = asyncio.get_running_loop().time()
                while self._renewed and next(iter(self._renewed.values()))[1] < now_s:
                    self._renewed.popitem(last=False)
                if digest in self._renewed:
                    return self._renewed[digest][0]
                found = await self._renewed_now(call, state)
                self._renewed[digest] = found, now_s + REMEMBERED_S
                if len(self._renewed) > REMEMBERED_MAX:
                    self._renewed.popitem(last=False)
                return found
        finally:
            if not lock.locked():
                self._renewing.pop(digest, None)

    async def _renewed_now(self, call: RenewSignInCall, state: StateAccess) -> SignInReply:
        client = await self._client(call.provider)
        renewal = unseal(self._authority, call.renewal, SealedRenewal)
        if (renewal.provider, renewal.issuer) != (call.provider, client.provider.issuer):
            raise Forbidden("This provider has changed. Sign in again.")
        form = {"grant_type": "refresh_token", "refresh_token": renewal.refresh_token}
        tokens = await client.exchange(renewal.client_id, form)
        if tokens is None:
            raise Forbidden("The provider does not renew this session.")
        claims = await self._claims(client, renewal.client_id, tokens, subject=renewal.subject)
        user = await self._admitted(identity_in(client.provider, claims), state)
        if (user.user_id, user.generation) != (renewal.user_id, renewal.generation):
            raise Forbidden("The tokens of this user were revoked. Sign in again.")
        kept = tokens.refresh_token or renewal.refresh_token  # RFC 6749, section 6: it may stay the same
        renewed = msgspec.structs.replace(renewal, refresh_token=kept)
        return await self._signed_in(client.provider, user, renewed)

    async def _end(self, call: EndSignInCall) -> str:
        client = await self._client(call.provider)
        renewal = unseal(self._authority, call.renewal, SealedRenewal)
        if (renewal.provider, renewal.issuer) == (call.provider, client.provider.issuer):
            await client.revoke(renewal.client_id, renewal.refresh_token)
        return renewal.user_id

    async def _claims(
        self,
        client: ProviderClient,
        client_id: str,
        tokens: Tokens,
        *,
        nonce: str | None = None,
        subject: str = "",
    ) -> Mapping[str, object]:
        """Return the claims about the person: in the ID token, else at the userinfo endpoint.

        `subject`: of the person at a renewal, which may come without an ID token (Core 1.0, 12.2). Raises
        Forbidden, ProviderUnavailable.
        """
        claims: Mapping[str, object] = {"sub": subject}
        if tokens.id_token or not subject:
            expected = Expected(client.provider.issuer, client_id, nonce, self._clocks.now_ms() / 1000)
            try:
                claims = await client.verify(tokens.id_token, expected)
            except InvalidIdToken as error:
                raise Forbidden(
                    f"The ID token of the provider was rejected: it is {error.reason}."
                ) from error
        if subject and claims["sub"] != subject:
            raise Forbidden("The provider told of another person than the one who signed in.")
        wanted = (client.provider.name_claim, client.provider.groups_claim)
        if all(name in claims for name in wanted):
            return claims
        return {**await client.userinfo(tokens.access_token, str(claims["sub"])), **claims}

    async def _admitted(self, identity: PersonIdentity, state: StateAccess) -> UserRecord:
        """Return the user of a person who may sign in; what the provider gives is recorded.

        Raises Forbidden for one who may not, whose tokens have then ended.
        """
        refused = Forbidden(
            "You are in no group that may sign in here. Ask an administrator which groups may."
        )
        for is_last in (False, True):
            answer = await state.read(MatchIdentity(identity=identity))
            known = msgspec.msgpack.decode(answer, type=KnownIdentity)
            if not identity.is_allowed and (known.user is None or known.is_recorded):
                raise refused
            if known.user is not None and known.is_recorded:
                return known.user
            user_id = known.user.user_id if known.user is not None else ""
            try:
                reply = await state.change(AdmitIdentity(identity=identity, user_id=user_id))
            except Refused as error:
                if error.code == Conflict.code and not is_last:
                    continue  # the same person signed in at the same moment
                raise
            if not identity.is_allowed:
                raise refused
            return msgspec.msgpack.decode(reply, type=UserRecord)
        raise AssertionError("unreachable")

    async def _signed_in(
        self, provider: Provider, user: UserRecord, renewal: SealedRenewal, label: str = ""
    ) -> SignInReply:
        try:
            minted = await self._issue(user, provider.token_seconds, label, renewal.session_id)
        except Refused as error:
            if error.code == Unauthorized.code:
                raise Forbidden("This session was ended. Sign in again.") from error
            raise
        now_ms = self._clocks.now_ms()
        return SignInReply(
            token=minted.token,
            user_id=minted.user_id,
            expires_at_ms=minted.expires_at_ms,
            roles=minted.roles,
            groups=minted.groups,
            renewal=seal(self._authority, renewal) if renewal.refresh_token else "",
            renew_at_ms=(now_ms + minted.expires_at_ms) // 2,
        )


def _grant(attempt: SealedAttempt, code: str) -> Mapping[str, str]:
    """Return the form for the token endpoint. Raises InvalidRequest without a code."""
    if attempt.device_code:
        return {"grant_type": DEVICE_GRANT, "device_code": attempt.device_code}
    if not code:
        raise InvalidRequest("code: is required")
    return {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": attempt.redirect_uri,
        "code_verifier": attempt.verifier,
    }


async def _check_issuer(client: ProviderClient, issuer: str, *, is_device: bool) -> None:
    """Raise Forbidden if another provider has answered (RFC 9207)."""
    if is_device:
        return
    is_missing = not issuer and (await client.endpoints()).has_issuer_parameter
    if is_missing or (issuer and issuer != client.provider.issuer):
        raise Forbidden("Another provider has answered than the one that was asked.")


def _whole(value: object, default: int) -> int:
    return value if type(value) is int and 0 < value <= 86_400 else default
