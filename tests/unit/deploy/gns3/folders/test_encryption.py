"""Encrypted archives: streams of any size, and keys that do not fit."""

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ca.errors import Conflict, InvalidRequest
from deploy.gns3.folders.encryption import (
    PIECE_BYTES,
    decrypt,
    encrypted_pieces,
    read_identities,
    read_recipients,
)
from deploy.gns3.folders.entries import FolderChanges

pyrage: Any = pytest.importorskip("pyrage")


@pytest.fixture
def identity() -> Any:
    return pyrage.x25519.Identity.generate()


def opened(content: bytes, *identities: Any) -> bytes:
    found = io.BytesIO()
    decrypt(io.BytesIO(content), found, identities)
    return found.getvalue()


@pytest.mark.parametrize("sizes", [[], [0, 1], [5 * PIECE_BYTES + 7], [PIECE_BYTES] * 3, [1] * 2000])
def test_stream_comes_back(identity: Any, sizes: list[int]) -> None:
    pieces = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    made = list(encrypted_pieces(iter(pieces), [identity.to_public()]))
    assert all(len(piece) <= PIECE_BYTES + (128 << 10) for piece in made)
    assert opened(b"".join(made), identity) == b"".join(pieces)


def test_each_recipient_can_read_it_and_no_other(identity: Any) -> None:
    other = pyrage.x25519.Identity.generate()
    made = b"".join(encrypted_pieces(iter([b"lab"]), [identity.to_public(), other.to_public()]))
    assert opened(made, other) == opened(made, identity) == b"lab"
    with pytest.raises(Conflict, match="No matching keys"):
        opened(made, pyrage.x25519.Identity.generate())


HARMS = (lambda made: made[:-1], lambda made: made[:-1] + bytes([made[-1] ^ 1]), lambda _: b"x")


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_stream_is_a_conflict(identity: Any, harm: Any) -> None:
    made = b"".join(encrypted_pieces(iter([b"lab" * 1000]), [identity.to_public()]))
    with pytest.raises(Conflict, match="cannot be decrypted"):
        opened(harm(made), identity)


def test_failure_of_the_source_is_raised(identity: Any) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x" * PIECE_BYTES
        raise FolderChanges("It was written to.")

    with pytest.raises(FolderChanges):
        list(encrypted_pieces(pieces(), [identity.to_public()]))


def test_stream_that_is_given_up_leaves_no_thread(identity: Any) -> None:
    before = threading.active_count()
    endless = iter(lambda: b"x" * PIECE_BYTES, b"")
    made = encrypted_pieces(endless, [identity.to_public()])
    assert next(made)
    made.close()
    assert threading.active_count() == before


def test_keys_are_read_from_files(identity: Any, tmp_path: Path) -> None:
    public, secret = tmp_path / "public", tmp_path / "secret"
    public.write_text(f"# of the course\n\n{identity.to_public()}\n")
    secret.write_text(f"# secret\n{identity}\n")
    made = b"".join(encrypted_pieces(iter([b"lab"]), read_recipients(public)))
    assert opened(made, *read_identities(secret)) == b"lab"
    for path in (tmp_path / "missing", secret):
        with pytest.raises(InvalidRequest) as raised:
            read_recipients(path)
        assert str(identity) not in str(raised.value)
    with pytest.raises(InvalidRequest, match="no secret key"):
        read_identities(public)
