"""Tickets: what a good one says; no user token is one, and none is a user token."""

from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import Gone, InvalidRequest, Unauthorized
from ca.keys import key_from_pem
from ca.usertoken import (
    LEEWAY_S,
    TICKET_TTL_SECONDS_MAX,
    TICKET_TTL_SECONDS_MIN,
    Ticket,
    Verifier,
    mint,
    mint_ticket,
    new_signing_key,
    public_jwk,
)

KEY = new_signing_key()
NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000
FILE = "019398a1-7c20-7b3e-9d11-0a1b2c3d4e5f"
VERIFIER = Verifier("lab", [public_jwk(KEY)])
HEADER = {"kid": KEY.kid, "typ": "filestore-ticket+jwt"}
CLAIMS = {
    "iss": "filestore:lab",
    "aud": "filestore:lab:tickets",
    "sub": "ann",
    "iat": NOW_S,
    "exp": NOW_S + 300,
    "gen": 3,
    "file": FILE,
}


def minted(**changes: Any) -> str:
    arguments: dict[str, Any] = {
        "cluster": "lab",
        "subject": "ann",
        "generation": 3,
        "file_uuid": FILE,
        "now_ms": NOW_MS,
        "ttl_seconds": 300,
    }
    return mint_ticket(KEY, **(arguments | changes))


def forged(header: dict[str, Any], claims: dict[str, Any]) -> str:
    """With a right signature over whatever header and claims."""
    return jwt.encode(claims, key_from_pem(KEY.private_pem), algorithm="ES256", headers=header)


def refused(text: str, now_ms: int = NOW_MS) -> None:
    with pytest.raises(Unauthorized):
        VERIFIER.verify_ticket(text, now_ms=now_ms)


TICKET = minted()
TOKEN = mint(
    KEY,
    cluster="lab",
    subject="ann",
    generation=3,
    roles=(),
    groups=(),
    now_ms=NOW_MS,
    ttl_seconds=300,
    token_id="t",
)


def test_ticket_says_what_was_minted() -> None:
    expected = Ticket(subject="ann", generation=3, file_uuid=FILE, expires_at_ms=NOW_MS + 300_000)
    assert VERIFIER.verify_ticket(TICKET, now_ms=NOW_MS) == expected
    assert VERIFIER.verify_ticket(forged(HEADER, CLAIMS), now_ms=NOW_MS) == expected


@pytest.mark.parametrize("verify", [VERIFIER.verify, VERIFIER.verify_signature])
def test_ticket_is_no_user_token(verify: Any) -> None:
    for text in (
        TICKET,
        forged(HEADER | {"typ": "at+jwt"}, CLAIMS),
        forged(HEADER, CLAIMS | {"nbf": NOW_S, "jti": "t", "roles": ["admin"], "groups": []}),
        forged(
            HEADER | {"typ": "at+jwt"},
            CLAIMS | {"nbf": NOW_S, "jti": "t", "roles": ["admin"], "groups": []},
        ),
    ):
        with pytest.raises(Unauthorized):
            verify(text, now_ms=NOW_MS)
    with pytest.raises(Unauthorized):
        VERIFIER.ends_at_ms(TICKET)


def test_ticket_ends_with_the_grace_time_of_its_key() -> None:
    keys = [public_jwk(new_signing_key()), public_jwk(KEY)]
    verifier = Verifier("lab", keys, ends_at_ms={KEY.kid: NOW_MS + 1000})
    assert verifier.verify_ticket(TICKET, now_ms=NOW_MS + 999).file_uuid == FILE
    with pytest.raises(Gone):
        verifier.verify_ticket(TICKET, now_ms=NOW_MS + 1000)


def test_user_token_is_no_ticket() -> None:
    assert VERIFIER.verify(TOKEN, now_ms=NOW_MS)
    claims = {"jti": "t", "nbf": NOW_S, "roles": [], "groups": [], "aud": "filestore:lab"}
    for text in (TOKEN, forged(HEADER | {"typ": "at+jwt"}, CLAIMS), forged(HEADER, CLAIMS | claims)):
        refused(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "filestore:other"},
        {"aud": "filestore:lab"},
        {"aud": ["filestore:lab:tickets"]},
        {"sub": ""},
        {"sub": 5},
        {"gen": -1},
        {"gen": "3"},
        {"gen": True},
        {"file": None},
        {"file": 7},
        {"file": "a/b"},
        {"exp": NOW_S + TICKET_TTL_SECONDS_MAX + 1},
        {"exp": NOW_S},
        {"exp": str(NOW_S + 300)},
        {"iat": float(NOW_S)},
    ],
)
def test_claim_that_is_not_as_ours_are_is_refused(changes: dict[str, Any]) -> None:
    refused(forged(HEADER, CLAIMS | changes))


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_is_required(name: str) -> None:
    refused(forged(HEADER, {each: value for each, value in CLAIMS.items() if each != name}))


@given(st.integers(0, len(TICKET) - 1), st.characters(min_codepoint=33, max_codepoint=126))
def test_altered_ticket_is_refused(place: int, character: str) -> None:
    altered = TICKET[:place] + character + TICKET[place + 1 :]
    if altered != TICKET:
        refused(altered)


@pytest.mark.parametrize("text", ["", "x", "a.b.c", TICKET + "A", TICKET[:-1], TICKET.upper(), "x" * 5000])
def test_other_text_is_refused(text: str) -> None:
    refused(text)


def test_ticket_ends_to_the_second_and_begins_within_the_leeway() -> None:
    assert VERIFIER.verify_ticket(TICKET, now_ms=NOW_MS + 299_999)
    with pytest.raises(Gone):
        VERIFIER.verify_ticket(TICKET, now_ms=NOW_MS + 300_000)
    assert VERIFIER.verify_ticket(TICKET, now_ms=NOW_MS - LEEWAY_S * 1000)
    refused(TICKET, NOW_MS - LEEWAY_S * 1000 - 1)


def test_ticket_ends_with_the_key_that_signed_it() -> None:
    ends = Verifier("lab", [public_jwk(KEY)], ends_at_ms={KEY.kid: NOW_MS + 100_000})
    assert ends.verify_ticket(TICKET, now_ms=NOW_MS + 99_999)
    with pytest.raises(Gone):
        ends.verify_ticket(TICKET, now_ms=NOW_MS + 100_000)
    assert ends.ends_at_ms(TOKEN) == NOW_MS + 100_000
    assert VERIFIER.ends_at_ms(TOKEN) == NOW_MS + 300_000


def test_ticket_of_another_key_or_cluster_is_refused() -> None:
    for other in (Verifier("lab", [public_jwk(new_signing_key())]), Verifier("labs", [public_jwk(KEY)])):
        with pytest.raises(Unauthorized):
            other.verify_ticket(TICKET, now_ms=NOW_MS)


@pytest.mark.parametrize("ttl_seconds", [TICKET_TTL_SECONDS_MIN - 1, TICKET_TTL_SECONDS_MAX + 1, 0, -1])
def test_life_of_a_ticket_is_bounded(ttl_seconds: int) -> None:
    with pytest.raises(InvalidRequest, match="ttl_seconds"):
        minted(ttl_seconds=ttl_seconds)
