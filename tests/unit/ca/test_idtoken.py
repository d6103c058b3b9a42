"""ID tokens of providers: what a good one says; everything that is forged, old or for others is rejected."""

import base64
import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from ca.idtoken import (
    ID_TOKEN_CHARS_MAX,
    KEYS_MAX,
    LEEWAY_S,
    Expected,
    InvalidIdToken,
    UnknownSigner,
    usable_keys,
    verify_id_token,
)

NOW_S = 1_800_000_000
ISSUER = "https://login.uni.example"
EXPECTED = Expected(ISSUER, "filestore", "the-nonce", NOW_S)
CLAIMS: dict[str, Any] = {
    "iss": ISSUER,
    "aud": "filestore",
    "sub": "7f3a",
    "iat": NOW_S,
    "exp": NOW_S + 600,
    "nonce": "the-nonce",
    "preferred_username": "alice",
}
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SHORT_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=1024)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def jwk(key: Any, **more: str) -> dict[str, object]:
    """The public half, as a provider publishes it."""
    if isinstance(key, rsa.RSAPrivateKey):
        text = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        text = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())
    else:
        text = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key())
    return {**json.loads(text), "use": "sig", **more}


KEYS = [jwk(RSA_KEY, kid="r1", alg="RS256"), jwk(EC_KEY, kid="e1"), jwk(ED_KEY, kid="d1")]


def signed(
    key: Any = RSA_KEY,
    alg: str = "RS256",
    kid: str | None = "r1",
    headers: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    claims = {name: value for name, value in (CLAIMS | changes).items() if value is not ...}
    return jwt.encode(
        claims, key, algorithm=alg, headers={**({"kid": kid} if kid else {}), **(headers or {})}
    )


def reason(token: Any, keys: Any = KEYS, expected: Expected = EXPECTED) -> str:
    with pytest.raises(InvalidIdToken) as raised:
        verify_id_token(token, keys, expected)
    assert raised.value.details == "A valid credential is required."
    return raised.value.reason


def forged(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, claims)]
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


@pytest.mark.parametrize(
    ("key", "alg", "kid"),
    [(RSA_KEY, "RS256", "r1"), (EC_KEY, "ES256", "e1"), (ED_KEY, "EdDSA", "d1"), (RSA_KEY, "RS256", None)],
)
def test_token_of_the_provider_is_believed(key: Any, alg: str, kid: str | None) -> None:
    assert verify_id_token(signed(key, alg, kid), KEYS, EXPECTED) == CLAIMS


def test_device_flow_has_no_nonce() -> None:
    expected = Expected(ISSUER, "filestore", None, NOW_S)
    assert verify_id_token(signed(nonce=...), KEYS, expected)["sub"] == "7f3a"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"iss": "https://evil.example"}, "from another issuer"),
        ({"iss": f"{ISSUER}/"}, "from another issuer"),
        ({"iss": ...}, "from another issuer"),
        ({"aud": "another"}, "for another audience"),
        ({"aud": ["another"]}, "for another audience"),
        ({"aud": ...}, "for another audience"),
        ({"aud": ["another", "filestore"]}, "for another authorized party"),
        ({"azp": "another"}, "for another authorized party"),
        ({"nonce": "another"}, "of another sign-in: its nonce differs"),
        ({"nonce": ...}, "of another sign-in: its nonce differs"),
        ({"nonce": ["the-nonce"]}, "of another sign-in: its nonce differs"),
        ({"sub": ...}, "without a subject"),
        ({"sub": ""}, "without a subject"),
        ({"sub": "x" * 256}, "without a subject"),
        ({"exp": ...}, "without the times of its beginning and end"),
        ({"iat": ...}, "without the times of its beginning and end"),
        ({"exp": True}, "the claim exp is no time"),
        ({"exp": -1}, "the claim exp is no time"),
        ({"exp": 2**60}, "the claim exp is no time"),
    ],
)
def test_token_with_wrong_claims_is_rejected(changes: dict[str, Any], why: str) -> None:
    assert reason(signed(**changes)) == why


def test_several_audiences_need_the_word_of_azp() -> None:
    token = signed(aud=["filestore", "another"], azp="filestore")
    assert verify_id_token(token, KEYS, EXPECTED)["sub"] == "7f3a"


@pytest.mark.parametrize(
    ("changes", "is_good"),
    [
        ({"exp": NOW_S - LEEWAY_S + 1}, True),
        ({"exp": NOW_S - LEEWAY_S}, False),
        ({"iat": NOW_S + LEEWAY_S}, True),
        ({"iat": NOW_S + LEEWAY_S + 1}, False),
        ({"nbf": NOW_S + LEEWAY_S}, True),
        ({"nbf": NOW_S + LEEWAY_S + 1}, False),
    ],
)
def test_clocks_may_differ_by_a_minute(changes: dict[str, Any], is_good: bool) -> None:
    token = signed(**changes)
    if is_good:
        assert verify_id_token(token, KEYS, EXPECTED)["sub"] == "7f3a"
    else:
        assert "clock" in reason(token)


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE", "", None, 5])
def test_unsigned_token_is_rejected_in_every_spelling(alg: Any) -> None:
    assert reason(forged({"alg": alg, "kid": "r1"}, CLAIMS))


@pytest.mark.parametrize("digest", ["HS256", "HS384", "HS512"])
def test_public_key_is_no_shared_secret(digest: str) -> None:
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    unsigned = forged({"alg": digest, "kid": "r1"}, CLAIMS).rsplit(".", 1)[0]
    mac = hmac.new(public, unsigned.encode(), getattr(hashlib, digest.replace("HS", "sha"))).digest()
    token = f"{unsigned}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    assert reason(token) == "signed by an algorithm that is not accepted"


def test_symmetric_key_in_the_key_set_is_never_used() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "s1", "alg": "HS256"}
    token = jwt.encode(CLAIMS, b"secret" * 8, algorithm="HS256", headers={"kid": "s1"})
    assert reason(token, [secret]) == "signed by an algorithm that is not accepted"
    assert usable_keys([secret]) == []


def test_key_that_the_token_brings_is_not_used() -> None:
    brought = {"jwk": jwk(OTHER_RSA_KEY), "jku": "https://evil.example/keys", "x5u": "https://evil.example/x"}
    assert reason(signed(OTHER_RSA_KEY, headers=brought)) == "InvalidSignatureError in the ID token"


def test_header_that_demands_an_extension_is_rejected() -> None:
    assert reason(signed(headers={"crit": ["b64"], "b64": True}))


def test_key_serves_algorithms_of_its_own_kind_only() -> None:
    for token in (signed(RSA_KEY, "RS512", "r1"), signed(EC_KEY, "ES256", "r1")):  # r1 is for RS256
        with pytest.raises(UnknownSigner):
            verify_id_token(token, KEYS, EXPECTED)
    assert verify_id_token(signed(RSA_KEY, "PS256", "r2"), [jwk(RSA_KEY, kid="r2")], EXPECTED)


def test_replaced_key_is_asked_for_and_a_wrong_signature_is_not() -> None:
    with pytest.raises(UnknownSigner):
        verify_id_token(signed(kid="new"), KEYS, EXPECTED)
    with pytest.raises(InvalidIdToken) as raised:
        verify_id_token(signed(OTHER_RSA_KEY), KEYS, EXPECTED)
    assert not isinstance(raised.value, UnknownSigner)


def test_encryption_key_and_short_key_sign_nothing() -> None:
    token = signed(kid="x")
    with pytest.raises(UnknownSigner):
        verify_id_token(token, [jwk(RSA_KEY, kid="x", use="enc")], EXPECTED)
    assert reason(token, [jwk(SHORT_RSA_KEY, kid="x")]) == "signed with an RSA key that is too short"


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "é.b.c",
        None,
        5,
        b"x",
        "x" * (ID_TOKEN_CHARS_MAX + 1),
        signed()[:-2],
        f"{signed()}.x",
    ],
)
def test_malformed_text_is_rejected(token: Any) -> None:
    assert reason(token)


@pytest.mark.parametrize(
    "keys",
    [
        [],
        [{}],
        [None],
        [{"kty": "RSA"}],
        [{"kty": "RSA", "kid": "r1", "n": "AQAB", "e": 5}],
        "keys",
        {"kty": 1},
    ],
)
def test_malformed_keys_verify_nothing(keys: Any) -> None:
    assert reason(signed(), keys)


def test_key_set_is_bounded() -> None:
    assert len(usable_keys([jwk(EC_KEY, kid=str(n)) for n in range(KEYS_MAX + 9)])) == KEYS_MAX
    assert usable_keys({"keys": []}) == usable_keys(None) == []


@settings(max_examples=200)
@given(st.integers(0, len(signed()) - 1), st.integers(0, 127))
def test_no_altered_character_is_believed(at: int, code: int) -> None:
    token = signed(EC_KEY, "ES256", "e1")
    at %= len(token)
    altered = token[:at] + chr(code) + token[at + 1 :]
    try:
        claims = verify_id_token(altered, KEYS, EXPECTED)
    except InvalidIdToken:
        return
    assert claims == CLAIMS  # the unused bits of the last character of a part
