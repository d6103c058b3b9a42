"""User tokens: what a good one says; every forged, altered, stale or malformed one is Unauthorized."""

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from hypothesis import given, settings
from hypothesis import strategies as st

from ca.errors import Internal, InvalidRequest, Unauthorized
from ca.keys import key_from_pem
from ca.names import NAMES_MAX, check_names, check_user_id
from ca.usertoken import (
    SERVICE_TTL_SECONDS_MAX,
    TOKEN_BYTES_MAX,
    TTL_SECONDS_DEFAULT,
    TTL_SECONDS_MAX,
    Claims,
    Verifier,
    mint,
    new_signing_key,
    public_jwk,
)

KEY = new_signing_key()
OTHER_KEY = new_signing_key()
NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000
VERIFIER = Verifier("lab", [public_jwk(KEY)])
HEADER = {"alg": "ES256", "kid": KEY.kid, "typ": "at+jwt"}
CLAIMS = {
    "iss": "filestore:lab",
    "aud": "filestore:lab",
    "sub": "ann",
    "iat": NOW_S,
    "nbf": NOW_S,
    "exp": NOW_S + 3600,
    "jti": "t1",
    "gen": 3,
    "roles": ["admin"],
    "groups": ["lab-1", "lab-2"],
}


def _mint(**changes: Any) -> str:
    arguments: dict[str, Any] = {
        "cluster": "lab",
        "subject": "ann",
        "generation": 3,
        "roles": ("admin",),
        "groups": ("lab-1", "lab-2"),
        "now_ms": NOW_MS,
        "ttl_seconds": 3600,
        "token_id": "t1",
    }
    return mint(KEY, **(arguments | changes))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _forge(header: object, claims: object, key_pem: bytes = KEY.private_pem) -> str:
    """A token with a right ES256 signature over whatever header and claims (JSON text as it is, if text)."""
    parts = (value if isinstance(value, str) else json.dumps(value) for value in (header, claims))
    signed = ".".join(_base64url(part.encode()) for part in parts)
    der = key_from_pem(key_pem).sign(signed.encode(), ec.ECDSA(hashes.SHA256()))
    signature = b"".join(number.to_bytes(32, "big") for number in utils.decode_dss_signature(der))
    return f"{signed}.{_base64url(signature)}"


def _refused(token: str, now_ms: int = NOW_MS) -> str:
    with pytest.raises(Unauthorized) as caught:
        VERIFIER.verify(token, now_ms=now_ms)
    assert caught.value.details == "A valid credential is required."
    return caught.value.reason


GOOD = _mint()


def test_minted_token_says_what_was_minted() -> None:
    assert VERIFIER.verify(GOOD, now_ms=NOW_MS) == Claims(
        subject="ann",
        generation=3,
        roles=("admin",),
        groups=("lab-1", "lab-2"),
        token_id="t1",
        issued_at_ms=NOW_MS,
        expires_at_ms=NOW_MS + 3_600_000,
        session_id="t1",
    )


def test_renewed_token_names_the_session_that_it_is_of() -> None:
    claims = VERIFIER.verify(_mint(token_id="t2", session_id="t1"), now_ms=NOW_MS)
    assert (claims.token_id, claims.session_id) == ("t2", "t1")
    for wrong in (5, "", None, "a b", ["t1"]):
        _refused(_forge(HEADER, CLAIMS | {"sid": wrong}))


def test_forging_hand_is_right_so_that_refusals_mean_something() -> None:
    assert VERIFIER.verify(_forge(HEADER, CLAIMS), now_ms=NOW_MS) == VERIFIER.verify(GOOD, now_ms=NOW_MS)


def test_jwk_is_public_and_named_by_its_thumbprint() -> None:
    jwk = public_jwk(KEY)
    assert set(jwk) == {"kty", "crv", "x", "y", "kid", "use", "alg"}
    canonical = json.dumps({name: jwk[name] for name in ("crv", "kty", "x", "y")}, separators=(",", ":"))
    assert jwk["kid"] == _base64url(hashlib.sha256(canonical.encode()).digest())
    assert "private_pem" not in repr(KEY)


@pytest.mark.parametrize(
    "alg", ["none", "None", "NONE", "nOnE", "", "HS256", "ES384", "ES256K", "RS256", "es256", None, 5]
)
def test_other_algorithms_are_refused(alg: object) -> None:
    _refused(_forge(HEADER | {"alg": alg}, CLAIMS))


@pytest.mark.parametrize("alg", ["none", "None", "NONE"])
def test_unsigned_token_is_refused(alg: str) -> None:
    parts = [_base64url(json.dumps(value).encode()) for value in (HEADER | {"alg": alg}, CLAIMS)]
    _refused(".".join([*parts, ""]))
    _refused(".".join(parts))
    _refused(".".join([*parts, GOOD.split(".")[2]]))


@pytest.mark.parametrize("alg", ["HS256", "ES256"])
def test_hmac_with_the_public_key_is_refused(alg: str) -> None:
    public_key = key_from_pem(KEY.private_pem).public_key()
    pem = public_key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for secret in (pem, pem.strip(), json.dumps(public_jwk(KEY)).encode()):
        parts = [_base64url(json.dumps(value).encode()) for value in (HEADER | {"alg": alg}, CLAIMS)]
        tag = hmac.digest(secret, ".".join(parts).encode(), "sha256")
        _refused(".".join([*parts, _base64url(tag)]))
        _refused(".".join([*parts, _base64url(tag + tag)]))


def test_unknown_retired_and_ill_typed_kids_are_refused() -> None:
    _refused(_forge(HEADER | {"kid": OTHER_KEY.kid}, CLAIMS, OTHER_KEY.private_pem))
    _refused(_forge(HEADER, CLAIMS, OTHER_KEY.private_pem))
    kids: list[object] = ["", "../../etc/passwd", "None", None, 5, [], {}, True]
    for kid in kids:
        _refused(_forge(HEADER | {"kid": kid}, CLAIMS))
    assert Verifier("lab", [public_jwk(OTHER_KEY), public_jwk(KEY)]).verify(GOOD, now_ms=NOW_MS)
    with pytest.raises(Unauthorized):
        Verifier("lab", [public_jwk(OTHER_KEY)]).verify(GOOD, now_ms=NOW_MS)
    with pytest.raises(Unauthorized):
        Verifier("lab", []).verify(GOOD, now_ms=NOW_MS)


@pytest.mark.parametrize(
    "extra",
    [
        {"crit": ["exp"]},
        {"crit": []},
        {"crit": ["b64"], "b64": False},
        {"b64": True},
        {"jku": "https://example.org/jwks.json"},
        {"x5u": "https://example.org/key.pem"},
        {"x5c": ["AA=="]},
        {"jwk": public_jwk(OTHER_KEY)},
        {"zip": "DEF"},
    ],
)
def test_headers_that_steer_verification_are_refused(extra: dict[str, object]) -> None:
    _refused(_forge(HEADER | extra, CLAIMS))
    _refused(_forge(HEADER | extra, CLAIMS, OTHER_KEY.private_pem))


@pytest.mark.parametrize("typ", ["JWT", "jwt", "AT+JWT", "application/at+jwt", "", None, 5, ["at+jwt"]])
def test_other_types_of_token_are_refused(typ: object) -> None:
    _refused(_forge(HEADER | {"typ": typ}, CLAIMS))


@pytest.mark.parametrize("name", ["alg", "kid", "typ"])
def test_missing_header_is_refused(name: str) -> None:
    _refused(_forge({key: value for key, value in HEADER.items() if key != name}, CLAIMS))


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_missing_claim_is_refused(name: str) -> None:
    _refused(_forge(HEADER, {key: value for key, value in CLAIMS.items() if key != name}))


NO_NUMBERS: list[object] = [True, "5", 5.0, None, -1, 2**53, [], {}, 1e300]
NO_NAMES: list[object] = [
    "admin",
    None,
    5,
    {},
    ["a", 5],
    [""],
    ["a" * 65],
    ["a b"],
    ["a"] * 65,
    [["a"]],
    [True],
]
NO_IDS: list[object] = ["", 5, None, True, "a b", "a/b", "a\n", "é", "a" * 129, ["ann"]]
NO_AUTHORITIES: list[object] = [
    "",
    "filestore:other",
    "filestore",
    "FILESTORE:lab",
    "filestore:lab ",
    None,
    5,
    {},
]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("iat", "nbf", "exp", "gen") for value in NO_NUMBERS),
        *((name, value) for name in ("roles", "groups") for value in NO_NAMES),
        *((name, value) for name in ("sub", "jti") for value in NO_IDS),
        *((name, value) for name in ("iss", "aud") for value in NO_AUTHORITIES),
        ("aud", ["filestore:lab"]),
        ("iss", ["filestore:lab"]),
    ],
)
def test_claim_of_wrong_type_or_value_is_refused(name: str, value: object) -> None:
    _refused(_forge(HEADER, CLAIMS | {name: value}))


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "[]",
        "5",
        "null",
        '"x"',
        "{",
        "[" * 1500,
        '{"exp":' + "9" * 2000 + "}",
        "NaN",
        "\x00",
        '{"a":"\\ud800"}',
    ],
)
def test_payload_or_header_that_is_no_object_is_refused(payload: str) -> None:
    _refused(_forge(HEADER, payload))
    _refused(_forge(payload, CLAIMS))


def test_token_of_another_cluster_is_refused() -> None:
    _refused(_mint(cluster="other"))


def test_expiry_and_not_before_hold_with_30_seconds_of_leeway() -> None:
    end_ms = NOW_MS + 3_600_000
    assert VERIFIER.verify(GOOD, now_ms=end_ms + 29_999)
    assert _refused(GOOD, now_ms=end_ms + 30_000) == "expired"
    assert VERIFIER.verify(GOOD, now_ms=NOW_MS - 30_000)
    assert _refused(GOOD, now_ms=NOW_MS - 30_001) == "not valid yet"
    assert _refused(_forge(HEADER, CLAIMS | {"nbf": NOW_S + 31})) == "not valid yet"
    assert _refused(_forge(HEADER, CLAIMS | {"iat": NOW_S + 31, "nbf": NOW_S})) == "not valid yet"


def test_life_longer_than_its_roles_allow_is_refused_even_when_signed() -> None:
    for roles, longest in (
        ([], TTL_SECONDS_MAX),
        (["services"], TTL_SECONDS_MAX),
        (["service"], SERVICE_TTL_SECONDS_MAX),
    ):
        claims = CLAIMS | {"roles": roles}
        assert VERIFIER.verify(_forge(HEADER, claims | {"exp": NOW_S + longest}), now_ms=NOW_MS)
        _refused(_forge(HEADER, claims | {"exp": NOW_S + longest + 1}))
        _refused(_forge(HEADER, claims | {"exp": NOW_S}))


def test_every_altered_character_is_refused() -> None:
    """The last character of the signature too, whose unused bits would otherwise be free."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for at, character in enumerate(GOOD):
        if character != ".":
            other = alphabet[alphabet.index(character) ^ 1]
            _refused(GOOD[:at] + other + GOOD[at + 1 :])


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        GOOD + ".",
        "." + GOOD,
        GOOD + "=",
        GOOD + "\n",
        " " + GOOD,
        f"Bearer {GOOD}",
        GOOD[:-1],
        GOOD.replace(".", ".!", 1),
        GOOD + "é",
        GOOD + "\udcff",
        "a" * (2 * TOKEN_BYTES_MAX),
        _forge(HEADER, CLAIMS | {"x": "y" * 6000}),
        GOOD.rsplit(".", 1)[0] + "." + "A" * 86,
    ],
)
def test_malformed_and_oversized_tokens_are_refused(token: str) -> None:
    _refused(token)


@given(st.text(alphabet=st.characters()))
def test_any_text_is_refused(text: str) -> None:
    _refused(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(sorted(CLAIMS)), JSON, min_size=1),
    st.dictionaries(st.sampled_from(sorted(HEADER)), JSON),
)
def test_any_values_signed_rightly_are_refused_or_well_typed(
    claims: dict[str, Any], header: dict[str, Any]
) -> None:
    try:
        verified = VERIFIER.verify(_forge(HEADER | header, CLAIMS | claims), now_ms=NOW_MS)
    except Unauthorized:
        return
    assert type(verified.generation) is int
    assert check_user_id(verified.subject) == verified.subject


def test_more_tokens_than_are_remembered_still_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ca.usertoken._VERIFIED_MAX", 2)
    verifier = Verifier("lab", [public_jwk(KEY)])
    for token in [_mint(token_id=f"t{number}") for number in range(5)] * 2:
        assert verifier.verify(token, now_ms=NOW_MS).subject == "ann"


@pytest.mark.parametrize("ttl", [0, -1, TTL_SECONDS_MAX + 1, True, 5.0, "5", None])
def test_life_out_of_bounds_is_not_minted(ttl: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^ttl_seconds: "):
        _mint(ttl_seconds=ttl)


def test_service_may_have_400_days_and_no_more() -> None:
    token = _mint(roles=("service",), ttl_seconds=SERVICE_TTL_SECONDS_MAX)
    assert VERIFIER.verify(token, now_ms=NOW_MS).expires_at_ms == NOW_MS + SERVICE_TTL_SECONDS_MAX * 1000
    with pytest.raises(InvalidRequest, match=r"^ttl_seconds: "):
        _mint(roles=("service",), ttl_seconds=SERVICE_TTL_SECONDS_MAX + 1)


def test_longest_and_default_lives_are_minted() -> None:
    for ttl in (TTL_SECONDS_MAX, TTL_SECONDS_DEFAULT):
        assert VERIFIER.verify(_mint(ttl_seconds=ttl), now_ms=NOW_MS).expires_at_ms == NOW_MS + ttl * 1000


def test_token_over_4_kib_is_not_minted() -> None:
    names = tuple(f"{number:064}" for number in range(NAMES_MAX))
    with pytest.raises(InvalidRequest, match=r"^roles, groups: "):
        _mint(roles=names)


@pytest.mark.parametrize("value", ["a", "ann@example.org", "a.b_c:d-e", "A" * 128])
def test_user_ids_pass(value: str) -> None:
    assert check_user_id(value) == value


@pytest.mark.parametrize("value", NO_IDS)
def test_other_user_ids_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^user_id: "):
        check_user_id(value)


@pytest.mark.parametrize("value", NO_NAMES)
def test_other_lists_of_names_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^roles: "):
        check_names(value, "roles")


def test_names_keep_their_order_and_lose_repeats() -> None:
    assert check_names(["b", "a", "b"], "roles") == ("b", "a")
    assert check_names([], "roles") == ()


@pytest.mark.parametrize(
    "change",
    [
        {"kty": "RSA"},
        {"crv": "P-384"},
        {"alg": "HS256"},
        {"x": "AA"},
        {"x": "!!"},
        {"y": 5},
        {"kid": 5},
        {"kid": None},
    ],
)
def test_key_set_with_other_keys_is_refused_as_our_fault(change: dict[str, object]) -> None:
    with pytest.raises(Internal):
        Verifier("lab", [public_jwk(KEY) | change])


def test_token_of_a_key_that_was_replaced_ends_with_its_grace_time() -> None:
    verifier = Verifier("lab", [public_jwk(OTHER_KEY), public_jwk(KEY)], ends_at_ms={KEY.kid: NOW_MS})
    assert verifier.verify(GOOD, now_ms=NOW_MS - 1)
    assert verifier.verify_signature(GOOD, now_ms=NOW_MS - 1)
    for verify in (verifier.verify, verifier.verify_signature):
        with pytest.raises(Unauthorized) as refused:
            verify(GOOD, now_ms=NOW_MS)
        assert "replaced" in refused.value.reason
