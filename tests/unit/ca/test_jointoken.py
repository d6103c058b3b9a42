"""Join tokens: text, what is sent, what is stored, and everything that is not one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import InvalidRequest, Unauthorized
from ca.jointoken import JoinToken, new_join_token, secret_digest, split_bearer

DIGEST = "ab" * 32
TOKEN = new_join_token(DIGEST)


def test_token_reads_back_from_its_text() -> None:
    assert JoinToken.parse(f" {TOKEN.text}\n") == TOKEN
    assert TOKEN.text == f"FST1.{TOKEN.token_id}.{TOKEN.secret}.{DIGEST}"


def test_secrets_are_32_bytes_and_never_the_same() -> None:
    assert len(TOKEN.secret) == 43
    assert new_join_token(DIGEST).secret != TOKEN.secret


def test_secret_is_not_in_the_repr() -> None:
    assert TOKEN.secret not in repr(TOKEN)


def test_bearer_and_whole_token_name_the_same_secret() -> None:
    assert split_bearer(TOKEN.bearer) == (TOKEN.token_id, TOKEN.secret)
    assert split_bearer(TOKEN.text) == (TOKEN.token_id, TOKEN.secret)


BAD = [
    "",
    ".",
    "...",
    "FST1",
    "FST1...",
    "garbage",
    "eyJh.eyJh.c2ln",
    TOKEN.text.replace("FST1", "FST2"),
    TOKEN.text.replace("FST1", "fst1"),
    TOKEN.text + ".x",
    TOKEN.text[:-1],
    TOKEN.text.replace(DIGEST, DIGEST.upper()),
    TOKEN.bearer[:-1],
    TOKEN.bearer + "=",
    TOKEN.bearer[:-1] + "é",
    TOKEN.bearer[:-1] + "\udcff",
    TOKEN.bearer + "\n",
    "x" * 100_000,
    "." * 100_000,
]


@pytest.mark.parametrize("text", [*BAD, TOKEN.bearer], ids=range(len(BAD) + 1))
def test_what_is_no_token_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^join_token: ") as caught:
        JoinToken.parse(text)
    assert TOKEN.secret[:-1] not in caught.value.details


@pytest.mark.parametrize("value", BAD, ids=range(len(BAD)))
def test_what_is_no_bearer_is_unauthorized(value: str) -> None:
    with pytest.raises(Unauthorized):
        split_bearer(value)


@given(st.text(alphabet=st.characters()))
def test_any_text_is_handled(text: str) -> None:
    with pytest.raises(Unauthorized):
        split_bearer(text)
    with pytest.raises(InvalidRequest):
        JoinToken.parse(text)
    assert len(secret_digest(text)) == 64


def test_lone_surrogates_are_digested() -> None:
    assert len(secret_digest("\udcff")) == 64
