"""User tokens: ES256 JWTs that identify the caller, minted for admins and verified on every member.

Tickets are signed by the same keys. The bearer of a ticket may read one file, as the user of the ticket.

The rules are RFC 8725's and RFC 9068's: one algorithm, keys from a static map, typ, issuer and audience
strict, every claim required and typed. typ and audience of tickets and tokens differ, so that they cannot be
confused. Time is an argument. On every request, the caller must compare `generation` with the replicated
state of the user. No I/O here.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from ca.errors import Gone, Internal, InvalidRequest, Unauthorized
from ca.keys import key_from_pem, key_to_pem, new_key
from ca.names import check_names, check_user_id

TTL_SECONDS_DEFAULT: Final = 12 * 3600
TTL_SECONDS_MAX: Final = 30 * 24 * 3600
SERVICE_ROLE: Final = "service"  # of users that are programs
SERVICE_TTL_SECONDS_MAX: Final = 400 * 24 * 3600
TICKET_TTL_SECONDS_DEFAULT: Final = 300
TICKET_TTL_SECONDS_MIN: Final = 60
TICKET_TTL_SECONDS_MAX: Final = 3600
TOKEN_BYTES_MAX: Final = 4096
LEEWAY_S: Final = 30

_ALGORITHM: Final = "ES256"
_TYPE: Final = "at+jwt"  # RFC 9068, 2.1
_TICKET_TYPE: Final = "filestore-ticket+jwt"
_HEADERS: Final = frozenset({"alg", "kid", "typ"})  # so no crit, jku, x5u, x5c, jwk, b64, zip
_CLAIMS: Final = ("iss", "aud", "sub", "iat", "nbf", "exp", "jti", "gen", "roles", "groups")
_TICKET_CLAIMS: Final = ("iss", "aud", "sub", "iat", "exp", "gen", "file")
_COORDINATE_BYTES: Final = 32
_VERIFIED_MAX: Final = 4096  # remembered tokens: a few MB, more callers than a lab has
_LATELY_MAX: Final = 512  # of those, by text: 2 MiB at most
_INTEGER_MAX: Final = 2**53 - 1
_BASE64URL: Final = r"[A-Za-z0-9_-]+"
# The last of the 86 characters that 64 bytes take has four unused bits; only zeros there are the canonical
# form, else one signature could be written in sixteen ways.
_COMPACT: Final = re.compile(rf"{_BASE64URL}\.{_BASE64URL}\.[A-Za-z0-9_-]{{85}}[AQgw]")
LIBRARY_FAILURES: Final = (  # of PyJWT, for a text that is no token
    jwt.PyJWTError,
    UnsupportedAlgorithm,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A P-256 key that user tokens are signed with. `kid` is its JWK thumbprint (RFC 7638)."""

    kid: str
    private_pem: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a verified token. Roles and groups are those at the time of minting.

    `session_id`: the id of the first token of the session; renewed tokens name it.
    """

    subject: str
    generation: int
    roles: tuple[str, ...]
    groups: tuple[str, ...]
    token_id: str
    issued_at_ms: int
    expires_at_ms: int
    session_id: str


@dataclass(frozen=True, slots=True)
class Ticket:
    """The claims of a verified ticket: its user, and the one file that it is for.

    `session_id`: the session of its user, "" in tickets of releases before 0.2.0.
    """

    subject: str
    generation: int
    file_uuid: str
    expires_at_ms: int
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class _SignedToken:
    claims: Claims
    not_before_ms: int
    key_ends_at_ms: float  # infinite unless its key was replaced


def new_signing_key() -> SigningKey:
    """A fresh signing key."""
    key = new_key()
    return SigningKey(_thumbprint(_coordinates(key.public_key())), key_to_pem(key))


def public_jwk(key: SigningKey) -> dict[str, str]:
    """The public half, as an element of `/.well-known/jwks.json` (RFC 7517)."""
    coordinates = _coordinates(key_from_pem(key.private_pem).public_key())
    return {**coordinates, "kid": key.kid, "use": "sig", "alg": _ALGORITHM}


def longest_ttl_seconds(roles: Sequence[str]) -> int:
    """How long a token with these roles may live: 400 days for the role `service`, else 30."""
    return SERVICE_TTL_SECONDS_MAX if SERVICE_ROLE in roles else TTL_SECONDS_MAX


def mint(
    signing_key: SigningKey,
    *,
    cluster: str,
    subject: str,
    generation: int,
    roles: tuple[str, ...],
    groups: tuple[str, ...],
    now_ms: int,
    ttl_seconds: int,
    token_id: str,
    session_id: str = "",
) -> str:
    """A signed token for `subject`. `session_id`: of the token that it renews, "" for the first of a session.

    Raises InvalidRequest: a life outside 1 s..`longest_ttl_seconds`, a token over 4 KiB.
    """
    longest = longest_ttl_seconds(roles)
    if type(ttl_seconds) is not int or not 1 <= ttl_seconds <= longest:
        raise InvalidRequest(f"ttl_seconds: an integer from 1 to {longest} is required")
    issued_at_s = now_ms // 1000
    claims = {
        "iss": _authority(cluster),
        "aud": _authority(cluster),
        "sub": check_user_id(subject),
        "iat": issued_at_s,
        "nbf": issued_at_s,
        "exp": issued_at_s + ttl_seconds,
        "jti": token_id,
        "gen": generation,
        "roles": list(check_names(roles, "roles")),
        "groups": list(check_names(groups, "groups")),
    }
    if session_id not in ("", token_id):
        claims["sid"] = check_user_id(session_id, "sid")
    token = _encode(signing_key, _TYPE, claims)
    if len(token) > TOKEN_BYTES_MAX:
        raise InvalidRequest(f"roles, groups: too many, as the token would exceed {TOKEN_BYTES_MAX} bytes")
    return token


def mint_ticket(
    signing_key: SigningKey,
    *,
    cluster: str,
    subject: str,
    generation: int,
    file_uuid: str,
    now_ms: int,
    ttl_seconds: int,
    session_id: str = "",
) -> str:
    """A signed ticket for one file. Raises InvalidRequest: a life outside 1..60 minutes."""
    if not TICKET_TTL_SECONDS_MIN <= ttl_seconds <= TICKET_TTL_SECONDS_MAX:
        bounds = f"{TICKET_TTL_SECONDS_MIN} to {TICKET_TTL_SECONDS_MAX}"
        raise InvalidRequest(f"ttl_seconds: an integer from {bounds} is required")
    issued_at_s = now_ms // 1000
    claims = {
        "iss": _authority(cluster),
        "aud": _tickets(_authority(cluster)),
        "sub": check_user_id(subject),
        "iat": issued_at_s,
        "exp": issued_at_s + ttl_seconds,
        "gen": generation,
        "file": file_uuid,
    }
    if session_id:
        claims["sid"] = check_user_id(session_id, "sid")
    return _encode(signing_key, _TICKET_TYPE, claims)


class Verifier:
    """Verifies the tokens of one cluster with a fixed set of keys; when the keys change, make another.

    Tokens whose signature was good are remembered (by digest, bounded), their times are compared on every
    call. `ends_at_ms`: of keys that were replaced, from when on they count for nothing.
    """

    def __init__(
        self,
        cluster: str,
        jwks: Sequence[Mapping[str, object]],
        *,
        ends_at_ms: Mapping[str, int] | None = None,
    ) -> None:
        self._authority = _authority(cluster)
        self._ends_at_ms = ends_at_ms or {}
        self._keys = {str(jwk.get("kid")): _public_key(jwk) for jwk in jwks}
        self._verified: dict[bytes, _SignedToken] = {}
        self._lately: dict[
            str, _SignedToken
        ] = {}  # of those, by the token itself: a digest costs more than that

    def verify(self, token: str, *, now_ms: int) -> Claims:
        """The claims of a good token at `now_ms`.

        Raises Unauthorized for every other text, and nothing else.
        """
        signed = self._signed(token)
        _check_times(signed, now_ms)
        return signed.claims

    def verify_signature(self, token: str, *, now_ms: int) -> Claims:
        """The claims of a token of ours, however old: for the end of something that began while it was valid.

        Its key must be good at `now_ms`.

        Raises Unauthorized for every other text, and nothing else.
        """
        signed = self._signed(token)
        _check_key(signed, now_ms)
        return signed.claims

    def ends_at_ms(self, token: str) -> int:
        """Return when a valid token expires, at its own end or that of its key.

        Raises Unauthorized for other texts.
        """
        signed = self._signed(token)
        return int(min(signed.claims.expires_at_ms, signed.key_ends_at_ms))

    def verify_ticket(self, text: str, *, now_ms: int) -> Ticket:
        """Return the claims of a ticket that is valid at `now_ms`; it expires to the second.

        Raises Gone for an expired ticket, Unauthorized for every other text, and nothing else.
        """
        if not isinstance(text, str) or len(text) > TOKEN_BYTES_MAX or not _COMPACT.fullmatch(text):
            raise Unauthorized("not a compact JWT of at most 4 KiB")
        ticket, issued_at_ms, key_ends_at_ms = self._checked(
            text, _TICKET_TYPE, _tickets(self._authority), _TICKET_CLAIMS, _typed_ticket
        )
        if now_ms >= min(ticket.expires_at_ms, key_ends_at_ms):
            raise Gone("This ticket has expired.")
        if now_ms < issued_at_ms - LEEWAY_S * 1000:
            raise Unauthorized("not valid yet")
        return ticket

    def _signed(self, token: str) -> _SignedToken:
        known = self._lately.get(token) if type(token) is str else None
        if known is not None:
            return known
        if not isinstance(token, str) or len(token) > TOKEN_BYTES_MAX or not token.isascii():
            raise Unauthorized("not a compact JWT of at most 4 KiB")
        digest = hashlib.sha256(token.encode("ascii")).digest()
        signed = self._verified.get(digest)
        if signed is None:
            if not _COMPACT.fullmatch(token):
                raise Unauthorized("not a compact JWT of at most 4 KiB")
            signed = self._checked(token, _TYPE, self._authority, _CLAIMS, _typed_claims)
            if len(self._verified) >= _VERIFIED_MAX:
                self._verified.clear()
            self._verified[digest] = signed
        if len(self._lately) >= _LATELY_MAX:
            self._lately.clear()
        self._lately[token] = signed
        return signed

    def _checked(
        self,
        token: str,
        kind: str,
        audience: str,
        claims: Sequence[str],
        typed: Callable[[Mapping[str, Any], float], _T],
    ) -> _T:
        """Verify a token of this typ, and return what `typed` makes of its claims and of its key's expiry.

        Raises Unauthorized.
        """
        options: jwt.types.Options = {
            "require": list(claims),
            "strict_aud": True,
            # PyJWT compares with the machine's clock; ours is an argument, and our own checks are stricter.
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
        }
        try:
            header = jwt.get_unverified_header(token)
            key = self._key_for(header, kind)
            payload = jwt.decode(
                token,
                key,
                algorithms=[_ALGORITHM],
                audience=audience,
                issuer=self._authority,
                options=options,
            )
            return typed(payload, self._ends_at_ms.get(header["kid"], math.inf))
        except InvalidRequest as error:
            raise Unauthorized(f"claim {error.details}") from error
        except LIBRARY_FAILURES as error:
            raise Unauthorized(f"{type(error).__name__} in the token") from error

    def _key_for(self, header: Mapping[str, Any], kind: str) -> ec.EllipticCurvePublicKey:
        """The key that the header names. A header never brings one, nor anything that would go unread."""
        if set(header) != _HEADERS or header["alg"] != _ALGORITHM or header["typ"] != kind:
            raise Unauthorized(f"the header must have alg ES256, typ {kind} and kid, and nothing else")
        key = self._keys.get(header["kid"])
        if key is None:
            raise Unauthorized("signed with a key that this cluster does not know")
        return key


def _encode(signing_key: SigningKey, kind: str, claims: Mapping[str, object]) -> str:
    return jwt.encode(
        dict(claims),
        key_from_pem(signing_key.private_pem),
        algorithm=_ALGORITHM,
        headers={"kid": signing_key.kid, "typ": kind},
    )


def _authority(cluster: str) -> str:
    return f"filestore:{cluster}"


def _tickets(authority: str) -> str:
    """The audience of tickets."""
    return f"{authority}:tickets"


def _typed_ticket(payload: Mapping[str, Any], key_ends_at_ms: float) -> tuple[Ticket, int, float]:
    """The ticket, when it was issued, and when its key ends."""
    issued_at_s, expires_at_s = (_whole_number(payload[name], name) for name in ("iat", "exp"))
    if not issued_at_s < expires_at_s <= issued_at_s + TICKET_TTL_SECONDS_MAX:
        raise InvalidRequest("exp: is not within an hour after iat")
    ticket = Ticket(
        subject=check_user_id(payload["sub"], "sub"),
        generation=_whole_number(payload["gen"], "gen"),
        file_uuid=check_user_id(payload["file"], "file"),
        expires_at_ms=expires_at_s * 1000,
        session_id=check_user_id(payload["sid"], "sid") if "sid" in payload else "",
    )
    return ticket, issued_at_s * 1000, key_ends_at_ms


def _typed_claims(payload: Mapping[str, Any], key_ends_at_ms: float) -> _SignedToken:
    """The claims, each of its type: PyJWT takes "5", 5.0 and true where a number belongs."""
    times_s = {name: _whole_number(payload[name], name) for name in ("iat", "nbf", "exp")}
    roles = check_names(payload["roles"], "roles")
    longest = longest_ttl_seconds(roles)
    if not times_s["iat"] < times_s["exp"] <= times_s["iat"] + longest:
        raise InvalidRequest(f"exp: is not within {longest // 86_400} days after iat")
    claims = Claims(
        subject=check_user_id(payload["sub"], "sub"),
        generation=_whole_number(payload["gen"], "gen"),
        roles=roles,
        groups=check_names(payload["groups"], "groups"),
        token_id=check_user_id(payload["jti"], "jti"),
        issued_at_ms=times_s["iat"] * 1000,
        expires_at_ms=times_s["exp"] * 1000,
        session_id=check_user_id(payload.get("sid", payload["jti"]), "sid"),
    )
    return _SignedToken(claims, not_before_ms=times_s["nbf"] * 1000, key_ends_at_ms=key_ends_at_ms)


def _whole_number(value: object, field: str) -> int:
    if type(value) is not int or not 0 <= value <= _INTEGER_MAX:
        raise InvalidRequest(f"{field}: an integer from 0 to {_INTEGER_MAX} is required")
    return value


def _check_key(signed: _SignedToken, now_ms: int) -> None:
    if now_ms >= signed.key_ends_at_ms:
        raise Unauthorized("signed with a key that was replaced")


def _check_times(signed: _SignedToken, now_ms: int) -> None:
    _check_key(signed, now_ms)
    if now_ms >= signed.claims.expires_at_ms + LEEWAY_S * 1000:
        raise Unauthorized("expired")
    if now_ms < max(signed.not_before_ms, signed.claims.issued_at_ms) - LEEWAY_S * 1000:
        raise Unauthorized("not valid yet")


def _coordinates(public_key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    """The required members of an EC JWK (RFC 7518, 6.2.1): coordinates of fixed width."""
    numbers = public_key.public_numbers()
    return {"kty": "EC", "crv": "P-256", "x": _base64url(numbers.x), "y": _base64url(numbers.y)}


def _base64url(coordinate: int) -> str:
    return _unpadded(coordinate.to_bytes(_COORDINATE_BYTES, "big"))


def _unpadded(data: bytes) -> str:
    """base64url without padding (RFC 7515, section 2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _thumbprint(coordinates: Mapping[str, str]) -> str:
    canonical = json.dumps(coordinates, sort_keys=True, separators=(",", ":")).encode()
    return _unpadded(hashlib.sha256(canonical).digest())


def _public_key(jwk: Mapping[str, object]) -> ec.EllipticCurvePublicKey:
    """The key in a JWK of our own making. Raises Internal when it is not one."""
    try:
        kind = (jwk["kty"], jwk["crv"], jwk["alg"])
        if kind != ("EC", "P-256", _ALGORITHM) or not isinstance(jwk["kid"], str):
            raise ValueError("kind of key")
        x, y = (_coordinate(jwk[name]) for name in ("x", "y"))
        return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    except (ValueError, KeyError) as error:
        raise Internal("the cluster's key set holds a key that is not P-256 for ES256") from error


def _coordinate(text: object) -> int:
    if not isinstance(text, str):
        raise ValueError("coordinate")
    return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), "big")
