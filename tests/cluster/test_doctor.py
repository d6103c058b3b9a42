"""`filestore doctor` on the directories of real processes, after `kill -9`, and after what disks do."""

import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ca.certificates import Authority, new_intermediate, new_root
from ca.errors import InvalidRequest
from ca.identity import Identity, Role
from ca.keys import key_to_pem, new_key
from coordinator.raft.messages import Entry, EntryKind, HardState
from coordinator.storage.raft_log import SegmentLog
from deploy.cli import cli
from node.packs.pack_file import pack_name
from node.packs.record import HEAD_BYTES, HEADER_BYTES
from tests.cluster.harness import Cluster
from tests.unit.custody_node import cut

CONTENT = b"kept whole" * 1000
LARGE = b"kept in a file of its own" * 8000


def doctor(data: Path, *options: str) -> Result:
    """The command in this process: starting one costs a second each."""
    return CliRunner().invoke(cli, ["doctor", "--data", str(data), *options], standalone_mode=False)


def exit_code(done: Result) -> int:
    """What the command would end with."""
    assert done.exception is None, done.exception
    return int(done.return_value)


def tree(data: Path) -> dict[str, tuple[int, int, int]]:
    """Every file with its mode, size and time of change."""
    found = {}
    for path in [data, *sorted(data.rglob("*"))]:
        facts = path.lstat()
        found[str(path)] = (facts.st_mode, facts.st_size, facts.st_mtime_ns)
    return found


def test_running_process_is_left_alone(cluster: Cluster) -> None:
    for member in (cluster.coordinators[0], cluster.nodes[0]):
        done = cluster.filestore("doctor", "--data", str(cluster.data(member)))
        assert done.returncode == 5
        assert done.stderr.startswith(b"filestore: conflict: ")


def test_directory_of_nobody_is_refused(tmp_path: Path) -> None:
    done = doctor(tmp_path)
    assert isinstance(done.exception, InvalidRequest)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A coordinator and a node that were killed while they held a file and an upload."""
    base = tmp_path_factory.mktemp("killed")
    with Cluster(base / "cluster") as cluster:
        for content in (CONTENT, LARGE):
            cluster.store_everywhere(content)
        upload = cluster.create(size_bytes=len(CONTENT))
        piece = {"Content-Range": f"bytes 0-99/{len(CONTENT)}"}
        put = cluster.request("PUT", upload["upload_url"], content=CONTENT[:100], headers=piece)
        assert put.status == 202
        leader = cluster.leader()
        holder = next(node for node in cluster.nodes if node.url in upload["upload_url"])
        cluster.kill(*cluster.members)
        shutil.copytree(cluster.data(leader), base / "coordinator", symlinks=True)
        shutil.copytree(cluster.data(holder), base / "node", symlinks=True)
    return {"coordinator": base / "coordinator", "node": base / "node"}


@pytest.mark.parametrize("role", ["coordinator", "node"])
def test_killed_member_is_sound_and_nothing_is_changed(killed: dict[str, Path], role: str) -> None:
    before = tree(killed[role])
    done = doctor(killed[role], "--deep")
    assert exit_code(done) == 0, done.output
    assert done.output.endswith("sound\n")
    assert tree(killed[role]) == before


def only(data: Path, pattern: str) -> Path:
    """The first file of this pattern."""
    return min(data.glob(pattern))


def flip(path: Path, at: int) -> None:
    """Change one byte of a file, whatever its mode."""
    mode = path.stat().st_mode
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    path.chmod(mode)


def spoil_database(data: Path) -> None:
    (data / "state.sqlite-wal").unlink(missing_ok=True)
    (data / "state.sqlite").write_bytes(b"no database at all" * 500)


def reword(path: Path, words: str, others: str) -> None:
    text = path.read_text()
    assert words in text
    path.write_text(text.replace(words, others))


def to_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


def lose_uploaded_bytes(data: Path) -> None:
    os.truncate(only(data, "uploads/*/data"), 10)


def lose_end_of_log(data: Path) -> None:
    shutil.rmtree(data / "log")
    genesis = (data / "genesis.bin").read_bytes()
    SegmentLog.bootstrap(data / "log", HardState(1, "", 1), [Entry(1, 1, EntryKind.COMMAND, genesis)])


def end_authority(data: Path) -> None:
    """The certificate of this node, and the intermediate that signed it, ended weeks ago; the root lives."""
    began = datetime.now(UTC) - timedelta(days=400)
    root_pem, root_key = new_root("development", now=began)
    intermediate_pem, intermediate_key = new_intermediate(root_pem, root_key, "development", now=began)
    authority = Authority(root_pem, intermediate_pem, intermediate_key)
    node_id, key = json.loads((data / "node.json").read_text())["id"], new_key()
    identity = Identity("development", Role.NODE, node_id)
    leaf = authority.sign_leaf(key.public_key(), identity, "127.0.0.1", now=began + timedelta(days=363))
    (data / "ca.pem").write_text(root_pem)
    (data / "credential.pem").write_bytes(key_to_pem(key) + leaf.pem.encode())


BLOB = "blobs/??/??/" + "?" * 64
PACK, OTHER_PACK = "packs/*.pack", f"packs/{pack_name(7)}"


def spoil_index(data: Path) -> None:
    (data / "packs" / "index.sqlite-wal").unlink(missing_ok=True)
    (data / "packs" / "index.sqlite").write_bytes(b"no database at all" * 500)


FAULTS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "log segment gone": ("coordinator", lambda data: shutil.rmtree(data / "log"), "the log was lost"),
    "log without its end": ("coordinator", lose_end_of_log, "its end was lost"),
    "log damaged": (
        "coordinator",
        lambda data: flip(only(data, "log/*.log"), 200),
        "does not match its checksum",
    ),
    "database spoiled": ("coordinator", spoil_database, "cannot be read"),
    "diverged": (
        "coordinator",
        lambda data: (data / "diverged").touch(),
        "differed from that of the majority",
    ),
    "secret open": ("coordinator", lambda data: (data / "cluster.key").chmod(0o644), "chmod 600"),
    "secret gone": ("coordinator", lambda data: (data / "cluster.key").unlink(), "is missing"),
    "secret of another cluster": (
        "coordinator",
        lambda data: (data / "cluster.key").write_bytes(os.urandom(32)),
        "this cluster key does not decrypt",
    ),
    "address of another": (
        "coordinator",
        lambda data: reword(data / "coordinator.json", '"127.0.0.1"', '"127.0.0.2"'),
        "is for the address 127.0.0.1, not for 127.0.0.2",
    ),
    "address of another node": (
        "node",
        lambda data: reword(data / "node.json", '"127.0.0.1"', '"127.0.0.2"'),
        "is for the address 127.0.0.1, not for 127.0.0.2",
    ),
    "list of coordinators spoiled": (
        "node",
        lambda data: (data / "coordinators.json").write_text("[{"),
        "Remove it",
    ),
    "authority ended": ("node", end_authority, "FilestoreAuthorityExpires"),
    "certificate spoiled": (
        "node",
        lambda data: (data / "credential.pem").write_text("nothing"),
        "cannot be used",
    ),
    "certificate empty": (
        "node",
        lambda data: (data / "credential.pem").write_text(""),
        "cannot be used: the private key is encrypted, damaged or not",
    ),
    "certificate overwritten": (
        "coordinator",
        lambda data: (data / "credential.pem").write_bytes(bytes(range(256))),
        "cannot be used: the private key is encrypted, damaged or not",
    ),
    "root gone": ("node", lambda data: (data / "ca.pem").unlink(), "Copy it from another member"),
    "root overwritten": (
        "node",
        lambda data: (data / "ca.pem").write_bytes(bytes(range(256))),
        "ca.pem cannot be used: the certificates are not PEM text",
    ),
    "root of a coordinator cut": (
        "coordinator",
        lambda data: cut(data / "ca.pem", 10),
        "ca.pem cannot be used: the certificates are not PEM text",
    ),
    "blob flipped": ("node", lambda data: flip(only(data, BLOB), 7), "does not match its name"),
    "blob cut": ("node", lambda data: cut(only(data, BLOB), 10), "has 10 bytes, its sidecar says"),
    "blob a link": ("node", lambda data: to_link(only(data, BLOB)), "cannot be read"),
    "blob writable": ("node", lambda data: only(data, BLOB).chmod(0o644), "chmod 400"),
    "sidecar gone": ("node", lambda data: only(data, BLOB + ".sums").unlink(), "has no sidecar"),
    "stray file": ("node", lambda data: (data / "blobs" / "notes.txt").touch(), "does not belong"),
    "upload cut": ("node", lose_uploaded_bytes, "were durable"),
    "everything open": ("node", lambda data: data.chmod(0o777), "chmod 700"),
    "credential gone": ("node", lambda data: (data / "credential.pem").unlink(), "is missing"),
    "blobs gone": ("node", lambda data: shutil.rmtree(data / "blobs"), "Is the right disk mounted"),
    "directory open": ("node", lambda data: (data / "blobs").chmod(0o755), "chmod 700"),
    "packs open": ("node", lambda data: (data / "packs").chmod(0o755), "chmod 700"),
    "stray file among packs": (
        "node",
        lambda data: (data / "packs" / "notes.txt").touch(),
        "does not belong",
    ),
    "pack header flipped": ("node", lambda data: flip(only(data, PACK), 3), "its header is damaged"),
    "pack of another": (
        "node",
        lambda data: only(data, PACK).rename(data / OTHER_PACK),
        "its header has the number",
    ),
    "pack a link": ("node", lambda data: to_link(only(data, PACK)), "cannot be read"),
    "pack open": ("node", lambda data: only(data, PACK).chmod(0o644), "chmod 600"),
    "pack cut": ("node", lambda data: cut(only(data, PACK), HEADER_BYTES + 50), "is beyond its end"),
    "pack gone": ("node", lambda data: only(data, PACK).unlink(), "is missing: it contained 1 blob"),
    "head of a packed blob flipped": (
        "node",
        lambda data: flip(only(data, PACK), HEADER_BYTES + 20),
        "has a header that differs from the index",
    ),
    "packed blob flipped": (
        "node",
        lambda data: flip(only(data, PACK), HEADER_BYTES + HEAD_BYTES + 7),
        "does not match its checksum",
    ),
    "index of packs spoiled": ("node", spoil_index, "creates the index again"),
}


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_fault_is_found_and_told_what_to_do_about(killed: dict[str, Path], tmp_path: Path, name: str) -> None:
    role, spoil, words = FAULTS[name]
    data = tmp_path / "data"
    shutil.copytree(killed[role], data, symlinks=True)
    spoil(data)
    done = doctor(data, "--deep")
    assert exit_code(done) == 10, done.output
    assert "PROBLEM" in done.output
    assert words in done.output
    problem_count = done.output.count("PROBLEM  ")
    assert done.output.endswith("1 problem\n" if problem_count == 1 else f"{problem_count} problems\n")


@pytest.mark.parametrize("role", ["coordinator", "node"])
def test_directory_may_be_reached_by_a_link(killed: dict[str, Path], tmp_path: Path, role: str) -> None:
    """A process runs there as well: the disk may be mounted elsewhere."""
    link = tmp_path / "data"
    link.symlink_to(killed[role])
    done = doctor(link)
    assert exit_code(done) == 0, done.output


def test_directory_of_blobs_that_is_gone_is_told_once(killed: dict[str, Path], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(killed["node"], data)
    shutil.rmtree(data / "blobs")
    done = doctor(data)
    assert (exit_code(done), done.output.count("PROBLEM")) == (10, 1)


def test_cluster_key_may_be_one_that_systemd_hands_over(
    killed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, credentials = tmp_path / "data", tmp_path / "credentials"
    shutil.copytree(killed["coordinator"], data, symlinks=True)
    credentials.mkdir()
    handed_over = (data / "cluster.key").rename(credentials / "cluster.key")
    assert exit_code(doctor(data)) == 10
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert exit_code(doctor(data)) == 0
    handed_over.chmod(0o644)
    assert exit_code(doctor(data)) == 10


def test_flipped_byte_needs_the_deep_check(killed: dict[str, Path], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(killed["node"], data)
    flip(only(data, BLOB), 7)
    assert exit_code(doctor(data)) == 0
    assert exit_code(doctor(data, "--deep")) == 10
