"""The token of a client, in a file that is read again."""

from pathlib import Path

import pytest

from filestore_client.base.token import Token, token_of


@pytest.mark.parametrize("wrong", [b"", b"a" * 4097, b"a" * (1 << 20), b"a\r\nb", b"\xff"])
def test_what_is_no_token_is_not_taken_in_place_of_a_rejected_one(tmp_path: Path, wrong: bytes) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    token: Token = token_of(path)
    path.write_bytes(wrong)
    assert not token.is_renewed("old")
    path.write_text("new\n")
    assert token.is_renewed("old")
    assert token.text == "new"
