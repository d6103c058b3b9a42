"""ID tokens of identity providers, verified by the provider's keys.

The rules are in OpenID Connect Core 1.0, section 3.1.3.7. Everything is an argument: the token, the keys, the
expected values, the time. Algorithms come from a list, and keys from the given set. A key serves only
algorithms of its own kind, so that no public key is ever used as a shared secret (RFC 8725). No I/O here.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from ca.errors import Unauthorized
from ca.usertoken import LIBRARY_FAILURES

ID_TOKEN_CHARS_MAX: Final = 32_768  # one with hundreds of groups
KEYS_MAX: Final = 64  # of one provider; large ones have a dozen
LEEWAY_S: Final = 60  # between the clocks of the provider and of this cluster
SUBJECT_CHARS_MAX: Final = 255  # Core 1.0, section 2
ALGORITHMS: Final[Mapping[str, tuple[str, str]]] = {  # the kind of key for each, with its curve
    "RS256": ("RSA", ""),
    "RS384": ("RSA", ""),
    "RS512": ("RSA", ""),
    "PS256": ("RSA", ""),
    "PS384": ("RSA", ""),
    "PS512": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
RSA_BITS_MIN: Final = 2048  # RFC 7518, section 3.3
_INTEGER_MAX: Final = 2**53 - 1


class InvalidIdToken(Unauthorized):
    """The ID token must not be believed; `reason` says why, without anything of the token."""


class UnknownSigner(InvalidIdToken):
    """None of the keys has the name in the token: the provider may have replaced its keys."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The values that an ID token must have. `nonce` is None for a flow without one."""

    issuer: str
    client_id: str
    nonce: str | None
    now_s: float


def verify_id_token(
    token: str, keys: Sequence[Mapping[str, object]], expected: Expected
) -> Mapping[str, object]:
    """Return the claims of an ID token that is signed with one of these JWKs and is what was expected.

    Raises UnknownSigner if no key has the name in its header, and InvalidIdToken for every other text.
    """
    if not isinstance(token, str) or len(token) > ID_TOKEN_CHARS_MAX or not token.isascii():
        raise InvalidIdToken(f"not an ID token of at most {ID_TOKEN_CHARS_MAX} characters")
    try:
        claims = _signed_claims(token, keys)
        _check_audience(claims, expected)
        _check_times(claims, expected.now_s)
    except LIBRARY_FAILURES as error:
        raise InvalidIdToken(f"{type(error).__name__} in the ID token") from error
    return claims


def usable_keys(keys: object) -> list[Mapping[str, object]]:
    """Return the signing keys of a JWK set, without those that no accepted algorithm uses."""
    kinds = {kind for kind, _ in ALGORITHMS.values()}
    found = [key for key in keys if isinstance(key, dict)] if isinstance(keys, list) else []
    return [key for key in found[:KEYS_MAX] if key.get("kty") in kinds and key.get("use", "sig") == "sig"]


def _signed_claims(token: str, keys: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    """Return the claims, once the signature was good. Raises InvalidIdToken and errors of the library."""
    header = jwt.get_unverified_header(token)
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise InvalidIdToken("signed by an algorithm that is not accepted")
    if "crit" in header:
        raise InvalidIdToken("the header demands an extension")
    options: jwt.types.Options = {
        # Time, issuer and audience are compared below: strictly, and by the time that was given.
        "verify_exp": False,
        "verify_nbf": False,
        "verify_iat": False,
        "verify_aud": False,
        "verify_iss": False,
        "verify_sub": False,
        "verify_jti": False,
    }
    failure: Exception = UnknownSigner("signed with a key that the provider does not publish")
    for key in _keys_named(header, algorithm, keys):
        try:
            public = jwt.PyJWK.from_dict(dict(key), algorithm=algorithm)
            if isinstance(public.key, rsa.RSAPublicKey) and public.key.key_size < RSA_BITS_MIN:
                raise InvalidIdToken("signed with an RSA key that is too short")
            return dict(jwt.decode(token, public.key, algorithms=[algorithm], options=options))
        except jwt.InvalidSignatureError as error:  # perhaps of the next one
            failure = error
    raise failure


def _keys_named(
    header: Mapping[str, Any], algorithm: str, keys: Sequence[Mapping[str, object]]
) -> list[Mapping[str, object]]:
    """Return the keys of the right kind with the name in the header; without a name, all of that kind."""
    kind, curve = ALGORITHMS[algorithm]
    fitting = [
        key
        for key in usable_keys(list(keys))
        if key["kty"] == kind and key.get("crv", "") == curve and key.get("alg", algorithm) == algorithm
    ]
    name = header.get("kid")
    return fitting if name is None else [key for key in fitting if key.get("kid") == name]


def _check_audience(claims: Mapping[str, object], expected: Expected) -> None:
    """Raise InvalidIdToken unless the token is from this provider, for this client and this sign-in."""
    if claims.get("iss") != expected.issuer:
        raise InvalidIdToken("from another issuer")
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if expected.client_id not in named:
        raise InvalidIdToken("for another audience")
    # Core 1.0, 3.1.3.7, steps 3 to 5: other audiences are only believed with the word of `azp`.
    if (len(named) > 1 or "azp" in claims) and claims.get("azp") != expected.client_id:
        raise InvalidIdToken("for another authorized party")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= SUBJECT_CHARS_MAX:
        raise InvalidIdToken("without a subject")
    if expected.nonce is not None:
        nonce = claims.get("nonce")
        if not isinstance(nonce, str) or not hmac.compare_digest(nonce.encode(), expected.nonce.encode()):
            raise InvalidIdToken("of another sign-in: its nonce differs")


def _check_times(claims: Mapping[str, object], now_s: float) -> None:
    """Raise InvalidIdToken for a token that has expired or is not valid yet."""
    times_s = {name: _seconds(claims, name) for name in ("exp", "iat", "nbf") if name in claims}
    if "exp" not in times_s or "iat" not in times_s:
        raise InvalidIdToken("without the times of its beginning and end")
    if times_s["exp"] <= now_s - LEEWAY_S:
        raise InvalidIdToken("expired; if that is wrong, the clock of the provider or of this cluster is")
    if max(times_s["iat"], times_s.get("nbf", 0)) > now_s + LEEWAY_S:
        raise InvalidIdToken("not valid yet: the clock of the provider is ahead, or the cluster's behind")


def _seconds(claims: Mapping[str, object], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _INTEGER_MAX:
        raise InvalidIdToken(f"the claim {name} is no time")
    return float(value)
