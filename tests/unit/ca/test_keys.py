"""Keys, wrapping under the cluster key, and files that hold secrets."""

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from ca.errors import Conflict
from ca.keys import (
    UnreadableKey,
    WrongClusterKey,
    key_from_pem,
    key_to_pem,
    new_cluster_key,
    new_key,
    public_key_digest,
    unwrap,
    wrap,
)
from ca.secretfiles import (
    SECRET_BYTES_MAX,
    UnsafeSecretFile,
    create_secret,
    read_secret,
    write_durable,
    write_secret,
)


def test_key_reads_back_from_its_pem() -> None:
    key = new_key()
    assert isinstance(key.curve, ec.SECP256R1)
    assert public_key_digest(key_from_pem(key_to_pem(key)).public_key()) == public_key_digest(
        key.public_key()
    )


def test_only_unencrypted_p256_keys_are_read() -> None:
    other_curve = ec.generate_private_key(ec.SECP384R1())
    encrypted = new_key().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"pass"),
    )
    for pem in (b"", b"garbage", key_to_pem(other_curve), encrypted):
        with pytest.raises(UnreadableKey):
            key_from_pem(pem)


@given(st.binary(max_size=300))
def test_wrapped_secret_opens_with_the_same_key_and_purpose(secret: bytes) -> None:
    key = new_cluster_key()
    wrapped = wrap(key, secret, purpose="intermediate key")
    assert unwrap(key, wrapped, purpose="intermediate key") == secret
    assert wrapped != wrap(key, secret, purpose="intermediate key")


def test_wrapped_secret_opens_with_nothing_else() -> None:
    key = new_cluster_key()
    wrapped = wrap(key, b"hush", purpose="intermediate key")
    with pytest.raises(WrongClusterKey, match="does not decrypt"):
        unwrap(new_cluster_key(), wrapped, purpose="intermediate key")
    with pytest.raises(WrongClusterKey, match="signing key"):
        unwrap(key, wrapped, purpose="signing key")
    with pytest.raises(WrongClusterKey, match="31 bytes"):
        unwrap(key[:31], wrapped, purpose="intermediate key")


def test_every_flipped_bit_and_every_cut_of_a_wrapped_secret_is_noticed() -> None:
    key = new_cluster_key()
    wrapped = wrap(key, b"hush", purpose="p")
    for at in range(len(wrapped)):
        damaged = wrapped[:at] + bytes([wrapped[at] ^ 1]) + wrapped[at + 1 :]
        for bad in (damaged, wrapped[:at]):
            with pytest.raises(WrongClusterKey):
                unwrap(key, bad, purpose="p")


def test_secret_is_written_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "key"
    old = os.umask(0)
    try:
        write_secret(path, b"one")
        write_secret(path, b"two")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret(path) == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_durable_file_has_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "root.pem"
    old = os.umask(0o077)
    try:
        write_durable(path, b"public")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_failed_write_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    (path / "inside").touch()
    with pytest.raises(OSError):
        write_secret(path, b"data")
    assert list(tmp_path.iterdir()) == [path]


def test_writing_over_a_symbolic_link_replaces_the_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"untouched")
    link.symlink_to(target)
    write_secret(link, b"secret")
    assert target.read_bytes() == b"untouched"
    assert not link.is_symlink()


def test_create_refuses_to_replace(tmp_path: Path) -> None:
    path = tmp_path / "admin-token"
    create_secret(path, b"first")
    with pytest.raises(Conflict, match="admin-token"):
        create_secret(path, b"second")
    assert read_secret(path) == b"first"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o660, 0o601])
def test_secret_open_to_others_is_refused_and_the_error_says_what_to_do(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    write_secret(path, b"hush")
    path.chmod(mode)
    with pytest.raises(UnsafeSecretFile, match=f"mode {mode:04o}.*chmod 600"):
        read_secret(path)


def test_systemd_credential_may_show_the_group_bit_of_its_access_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster-key"
    write_durable(path, b"key", mode=0o440)
    with pytest.raises(UnsafeSecretFile):
        read_secret(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_secret(path) == b"key"
    path.chmod(0o444)
    with pytest.raises(UnsafeSecretFile):
        read_secret(path)


def test_missing_large_and_special_files_are_no_secrets(tmp_path: Path) -> None:
    large, pipe = tmp_path / "large", tmp_path / "pipe"
    write_secret(large, bytes(SECRET_BYTES_MAX + 1))
    os.mkfifo(pipe, 0o600)
    for path in (tmp_path / "missing", large, pipe, tmp_path):
        with pytest.raises(UnsafeSecretFile):
            read_secret(path)
