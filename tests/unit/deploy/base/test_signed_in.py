"""What renews the token of a sign-in, in its file: written with the token, and ended with it."""

from pathlib import Path

import pytest

from deploy.base.signed_in import KeptSignIn, forget, keep, kept_file, read_kept
from filestore_client.base.records import SignedIn


def signed_in(renewal: str) -> SignedIn:
    return SignedIn(
        token="t",
        user_id="uni:alice",
        expires_at="2026-11-29T19:00:00.000Z",
        roles=[],
        groups=[],
        renewal=renewal,
        renew_at="2026-11-29T18:30:00.000Z",
    )


def test_renewal_is_kept_beside_the_token_for_its_user_alone(tmp_path: Path) -> None:
    token_file = tmp_path / "files.lab.example.token"
    keep(token_file, "uni", signed_in("sealed"))
    assert kept_file(token_file) == tmp_path / "files.lab.example.sign-in"
    assert kept_file(token_file).stat().st_mode & 0o777 == 0o600
    assert read_kept(token_file) == KeptSignIn("uni", "sealed", 1_795_977_000.0)
    assert "sealed" not in repr(read_kept(token_file))
    forget(token_file)
    forget(token_file)
    assert read_kept(token_file) is None


def test_sign_in_that_cannot_be_renewed_leaves_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    token_file = tmp_path / "lab.token"
    keep(token_file, "uni", signed_in("sealed"))
    keep(token_file, "uni", signed_in(""))
    assert read_kept(token_file) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"provider": 5}', b"[" * 70_000])
def test_file_that_is_none_of_ours_renews_nothing(tmp_path: Path, content: bytes) -> None:
    kept_file(tmp_path / "lab.token").write_bytes(content)
    assert read_kept(tmp_path / "lab.token") is None
