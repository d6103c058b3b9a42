"""What is read at start and is not what was written is told in a sentence, with what to do."""

import base64
import random
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ca.certificates import Authority
from ca.errors import FilestoreError
from ca.identity import Identity, Role
from ca.keys import UnreadableKey, key_from_pem, key_to_pem, new_key
from ca.secretfiles import UnsafeSecretFile, read_secret
from ca.tls import Credential, UnusableCredential, read_roots
from coordinator.admin.authority import KeyDamaged, SigningAuthority
from coordinator.admin.setup import init_cluster
from coordinator.member.state_digests import StateDiverged, check_not_diverged
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles, NotInitialised
from coordinator.storage.state_damage import unreadable_in
from coordinator.storage.state_store import Store
from metadata.model.records import CoordinatorRecord
from metadata.rpc.tls_contexts import MemberContexts
from node.base.config import NodeFiles, NotJoined
from tests.unit.peer_ports import CLUSTER, contexts_of

EIO = Path("/proc/self/mem")  # a read of what is mapped nowhere fails as one of a broken disk does


def with_flipped_scalar(pem: bytes) -> bytes:
    """One bit of the private number is another; the public half beside it is as it was."""
    head, rest = pem.split(b"-----\n", 1)
    body, tail = rest.split(b"-----END", 1)
    der = bytearray(base64.b64decode(body))
    der[der.index(b"\x04\x20") + 20] ^= 1  # an OCTET STRING of 32 bytes (RFC 5915)
    return head + b"-----\n" + base64.encodebytes(bytes(der)) + b"-----END" + tail


def test_private_key_with_a_flipped_bit_is_refused() -> None:
    pem = key_to_pem(new_key())
    key_from_pem(pem)
    with pytest.raises(UnreadableKey, match="damaged"):
        key_from_pem(with_flipped_scalar(pem))


def spoilt_key(pem: bytes) -> bytes:
    end = pem.index(b"-----BEGIN CERTIFICATE")
    return with_flipped_scalar(pem[:end]) + pem[end:]


def spoilt_certificate(number: int) -> Callable[[bytes], bytes]:
    """One bit of what was signed, of the leaf or of the intermediate."""

    def spoil(pem: bytes) -> bytes:
        parts = pem.split(b"-----BEGIN CERTIFICATE-----\n")
        body, tail = parts[number].split(b"-----END", 1)
        der = bytearray(base64.b64decode(body))
        der[-3] ^= 1  # in the signature
        parts[number] = base64.encodebytes(bytes(der)) + b"-----END" + tail
        return b"-----BEGIN CERTIFICATE-----\n".join(parts)

    return spoil


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("spoil", [spoilt_key, spoilt_certificate(1), spoilt_certificate(2)])
def test_credential_with_a_flipped_bit_is_told(
    tmp_path: Path, peer_authority: Authority, role: Role, spoil: Callable[[bytes], bytes]
) -> None:
    credential = contexts_of("m1", tmp_path, peer_authority, role=role, made_days_ago=400).credential
    credential.path.write_bytes(spoil(credential.path.read_bytes()))
    told = r"m1\.pem cannot be used: .*(damaged|cluster's root certificate|not in PEM format)\. Restore it"
    with pytest.raises(UnusableCredential, match=told):
        MemberContexts(credential, Identity(CLUSTER, role, "m1"))


def test_disk_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnsafeSecretFile, match=r"mem cannot be read: Input/output error\. Check the disk"):
        read_secret(EIO)
    coordinator, node = CoordinatorFiles(tmp_path), NodeFiles(tmp_path)
    for path in (coordinator.config, node.config, coordinator.diverged, coordinator.root):
        path.symlink_to(EIO)
    with pytest.raises(NotInitialised, match="Input/output error"):
        coordinator.read_config()
    with pytest.raises(NotJoined, match="Input/output error"):
        node.read_config()
    with pytest.raises(StateDiverged, match="Input/output error"):
        check_not_diverged(coordinator.diverged)
    with pytest.raises(UnusableCredential, match="Input/output error"):
        read_roots(coordinator.root)


def test_garbage_that_says_that_the_state_is_wrong_keeps_the_member_from_starting(tmp_path: Path) -> None:
    (tmp_path / "diverged").write_bytes(b"\xff\xfe")
    with pytest.raises(StateDiverged):
        check_not_diverged(tmp_path / "diverged")
    (tmp_path / "diverged").write_bytes(b"")
    with pytest.raises(StateDiverged, match="is wrong"):
        check_not_diverged(tmp_path / "diverged")


def test_database_that_the_disk_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").mkdir()
    with pytest.raises(sqlite3.DatabaseError) as failed, closing(sqlite3.connect(tmp_path / "state.sqlite")):
        pass
    told = unreadable_in(failed.value)
    assert told is not None
    assert "Check the disk" in told.details


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[CoordinatorFiles, CoordinatorConfig]:
    """A coordinator that never ran."""
    files = CoordinatorFiles(tmp_path_factory.mktemp("begun") / "c1")
    member = CoordinatorRecord(coordinator_id="c1", address="192.0.2.1", peer_port=1, api_port=2)
    init_cluster(files.data, coordinator_id="c1", cluster="lab", members=[member], replicas=1, write_quorum=1)
    return files, files.read_config()


@pytest.mark.parametrize(
    "change",
    [
        "wrapped = zeroblob(100) WHERE purpose = 'intermediate'",
        "wrapped = zeroblob(100) WHERE purpose = 'user_token'",
        "public = 'garbage' WHERE purpose = 'intermediate'",
        "purpose = 'intermediatf' WHERE purpose = 'intermediate'",
    ],
)
def test_key_that_was_damaged_in_the_state_is_told(
    begun: tuple[CoordinatorFiles, CoordinatorConfig], tmp_path: Path, change: str
) -> None:
    files, config = begun
    copy = tmp_path / "state.sqlite"
    with closing(sqlite3.connect(files.state)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        target.execute(f"UPDATE keys SET {change}")
        target.commit()
    with closing(Store(copy)) as store:
        authority = SigningAuthority(store, files.read_cluster_key(), config.cluster, read_roots(files.root))
        with pytest.raises(KeyDamaged, match="filestore coordinator rebuild"):
            authority.require_key()


def test_keys_as_they_were_written_are_taken(begun: tuple[CoordinatorFiles, CoordinatorConfig]) -> None:
    files, config = begun
    with closing(Store(files.state)) as store:
        key = files.read_cluster_key()
        SigningAuthority(store, key, config.cluster, read_roots(files.root)).require_key()


def der_flips(pem: bytes, dice: random.Random) -> Iterator[bytes]:
    """The text with one bit of one byte of what it encodes changed: each byte of each part has its turn."""
    for part in re.finditer(rb"-----BEGIN [A-Z ]+-----\n(.*?)-----END", pem, re.DOTALL):
        der = base64.b64decode(part[1])
        for at in range(len(der)):
            spoilt = bytearray(der)
            spoilt[at] ^= 1 << dice.randrange(8)
            yield pem[: part.start(1)] + base64.encodebytes(bytes(spoilt)) + pem[part.end(1) :]


def text_flips(pem: bytes, dice: random.Random) -> Iterator[bytes]:
    """The text with one bit of one of its bytes changed."""
    for at in range(len(pem)):
        yield pem[:at] + bytes([pem[at] ^ 1 << dice.randrange(8)]) + pem[at + 1 :]


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")  # of serials < 1
@pytest.mark.parametrize("flips", [der_flips, pytest.param(text_flips, marks=pytest.mark.long)])
def test_any_bit_of_a_credential_or_a_root_that_flips_is_told_or_means_nothing(
    tmp_path: Path,
    peer_authority: Authority,
    flips: Callable[[bytes, random.Random], Iterator[bytes]],
) -> None:
    """Whatever becomes of it: an algorithm or a curve that nobody knows, a name that is no text, a length."""
    identity = Identity(CLUSTER, Role.COORDINATOR, "m1")
    credential = contexts_of("m1", tmp_path, peer_authority, role=Role.COORDINATOR).credential
    roots, dice = tmp_path / "ca.pem", random.Random(39)
    refused = 0
    for pem in flips(credential.path.read_bytes(), dice):
        credential.path.write_bytes(pem)
        refused += is_refused(lambda: start(credential, identity))
    contexts_of("m1", tmp_path, peer_authority, role=Role.COORDINATOR)
    for pem in flips(credential.root_pem.encode(), dice):
        roots.write_bytes(pem)
        refused += is_refused(lambda: start(replace(credential, root_pem=read_roots(roots)), identity))
    assert refused > 1000


def start(credential: Credential, identity: Identity) -> None:
    """What a member does with its certificate before it listens."""
    MemberContexts(credential, identity)
    credential.require_address("127.0.0.1")
    credential.renewal()


def is_refused(act: Callable[[], None]) -> bool:
    """Whether it is refused with a sentence; anything else that it raises fails the test."""
    try:
        act()
    except FilestoreError as refusal:
        return len(refusal.details) > 0
    return False
