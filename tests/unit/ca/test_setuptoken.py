"""Setup tokens: their text, and that only the cluster key makes one."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import InvalidRequest
from ca.identity import Identity, Role
from ca.jointoken import JoinToken, new_join_token, split_bearer
from ca.keys import new_cluster_key
from ca.setuptoken import REPEAT_S, SetupToken, is_of_cluster_key, new_setup_token

KEY = new_cluster_key()
ENDS_S = 2_000_000_000
C1 = Identity("lab", Role.COORDINATOR, "c1")
TOKEN = new_setup_token(KEY, "0" * 64, C1, "10.0.0.1", 7441, ends_at_s=ENDS_S)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("10.0.0.1", "https://10.0.0.1:7441"),
        ("fd00::1", "https://[fd00::1]:7441"),
        ("files1.lab.example", "https://files1.lab.example:7441"),
    ],
)
def test_text_says_whom_to_ask_where_and_reads_back(address: str, url: str) -> None:
    token = new_setup_token(KEY, "0" * 64, C1, address, 7441, ends_at_s=ENDS_S)
    assert token.url == url
    assert SetupToken.parse(f" {token.text}\n") == token
    assert "'" not in token.text
    assert token.coordinator.dns_name == "c1.coordinator.lab.internal"


def test_secret_is_that_of_the_cluster_key_and_of_the_token_id() -> None:
    token_id, secret = TOKEN.join.token_id, TOKEN.join.secret
    assert is_good(token_id, secret)
    assert not is_of_cluster_key(new_cluster_key(), token_id, secret, at_s=ENDS_S - 1)
    assert not is_good(f"{token_id[:-1]}{'0' if token_id[-1] != '0' else '1'}", secret)
    assert not is_good(f"{token_id}0", secret)
    assert not is_good(token_id, secret[:-1])
    other = new_join_token("0" * 64)  # which rights in the API are enough for
    assert not is_good(other.token_id, other.secret)
    assert not is_good(f"setup-{ENDS_S}-{'0' * 32}", other.secret)


def test_token_ends_when_its_id_says_whatever_the_cluster_knows_of_it() -> None:
    """Who may make join tokens, and reads an old text, could let the cluster know of it once more."""
    token_id, secret = TOKEN.join.token_id, TOKEN.join.secret
    assert is_good(token_id, secret, at_s=ENDS_S + REPEAT_S - 1)
    assert not is_good(token_id, secret, at_s=ENDS_S + REPEAT_S)
    assert not is_good(token_id.replace(str(ENDS_S), str(ENDS_S + 3600)), secret)


def is_good(token_id: str, secret: str, *, at_s: float = ENDS_S - 1) -> bool:
    return is_of_cluster_key(KEY, token_id, secret, at_s=at_s)


def test_two_tokens_have_two_secrets_and_none_is_in_the_repr() -> None:
    other = new_setup_token(KEY, "0" * 64, C1, "10.0.0.1", 7441, ends_at_s=ENDS_S)
    assert other.join.secret != TOKEN.join.secret
    assert TOKEN.join.secret not in repr(TOKEN)


def test_neither_kind_of_token_is_taken_for_the_other() -> None:
    """`filestore node join` would show the secret to a node."""
    with pytest.raises(InvalidRequest):
        JoinToken.parse(TOKEN.text)
    with pytest.raises(InvalidRequest):
        SetupToken.parse(new_join_token("0" * 64).text)
    assert split_bearer(TOKEN.join.bearer) == (TOKEN.join.token_id, TOKEN.join.secret)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "FSS1",
        TOKEN.text[:-5],
        TOKEN.text.replace("@", "@@", 1),
        TOKEN.text.replace("FSS1.", "FSS2.", 1),
        TOKEN.text.replace("c1.lab", "c1"),
        TOKEN.text.replace("c1.lab", "c1.lab.x"),
        TOKEN.text.replace("10.0.0.1:7441", "10.0.0.1"),
        TOKEN.text.replace("10.0.0.1:7441", "10.0.0.1:0"),
        TOKEN.text.replace("10.0.0.1:7441", "*:7441"),
        TOKEN.text.replace("0" * 64, "0" * 63),
        TOKEN.text + "x" * 1024,
    ],
    ids=range(12),
)
def test_damaged_text_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^join: ") as caught:
        SetupToken.parse(text)
    assert TOKEN.join.secret not in caught.value.details


@given(st.text(max_size=400))
def test_any_text_is_refused_or_a_token(text: str) -> None:
    with contextlib.suppress(InvalidRequest):
        SetupToken.parse(text)
