"""A coordinator's directory: made from a bundle, made from a snapshot, made anew; and what is refused."""

import errno
import sqlite3
import subprocess
from contextlib import closing
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import msgspec
import pytest
from click.testing import CliRunner

from ca.certificates import certificates_in
from ca.errors import Conflict, InvalidRequest
from ca.keys import key_from_pem
from ca.secretfiles import UnsafeSecretFile, write_secret
from coordinator.admin import restore, setup
from coordinator.admin.authority import make_intermediate
from coordinator.admin.doctor import examine
from coordinator.member.open_storage import open_ledger
from coordinator.member.state_digests import StateDiverged, check_not_diverged, mark_diverged
from coordinator.raft.messages import Entry, EntryKind
from coordinator.raft_metrics import timed_sync
from coordinator.storage.config import CoordinatorConfig, CoordinatorFiles, NotInitialised
from coordinator.storage.raft_log import SegmentLog
from coordinator.storage.state_store import Store
from deploy.commands.coordinator import coordinator
from metadata.model.records import VOTER, Caller, CoordinatorRecord
from metadata.protocol.commands import AddIntermediate, AnyCommand, Envelope, PutUser, encode_envelope
from metadata.rpc.roster import read_known, write_known
from runtime.clock import now_ms
from runtime.file_digests import digest_beside
from runtime.metrics import Metrics
from tests.unit.state import ADMIN


def record(coordinator_id: str, port: int = 7442) -> CoordinatorRecord:
    return CoordinatorRecord(
        coordinator_id=coordinator_id, address="127.0.0.1", peer_port=port, api_port=port + 1
    )


@pytest.fixture
def files(tmp_path: Path) -> CoordinatorFiles:
    """A coordinator of a cluster of two."""
    made = CoordinatorFiles(tmp_path / "c1")
    setup.init_cluster(
        made.data,
        coordinator_id="c1",
        cluster="lab",
        members=[record("c1"), record("c2", 7452)],
        development=True,
    )
    return made


def later_bundle(files: CoordinatorFiles) -> Path:
    path = files.data.parent / "later.bundle"
    restore.write_bundle(files.data, path)
    return path


def test_bundle_says_what_the_options_of_a_new_cluster_say(files: CoordinatorFiles, tmp_path: Path) -> None:
    arguments = ["init", "--id", "c2", "--data", str(tmp_path / "c2"), "--bundle", str(files.bundle)]
    done = CliRunner().invoke(coordinator, [*arguments, "--cluster", "other", "--replicas", "3"])
    assert done.exit_code == 2
    assert "--bundle already contains these settings: --cluster, --replicas." in done.output
    assert not (tmp_path / "c2").exists()
    assert CliRunner().invoke(coordinator, arguments).exit_code == 0


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_directory_of_others_is_refused_and_left_as_it_is(tmp_path: Path, mode: int) -> None:
    (tmp_path / "precious").touch()
    tmp_path.chmod(mode)
    with pytest.raises(Conflict, match="is not empty"):
        setup.init_cluster(
            tmp_path, coordinator_id="c1", cluster="lab", members=[record("c1")], development=True
        )
    assert tmp_path.stat().st_mode & 0o777 == mode
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("port", [7442, 7441, 7443])
def test_two_members_at_one_address_and_port_are_refused(tmp_path: Path, port: int) -> None:
    members = [record("c1"), record("c2", port)]
    with pytest.raises(InvalidRequest, match="the same address and port"):
        setup.init_cluster(
            tmp_path / "c1", coordinator_id="c1", cluster="lab", members=members, development=True
        )
    assert not (tmp_path / "c1").exists()


def test_member_that_init_named_begins_from_the_first_bundle(files: CoordinatorFiles) -> None:
    data = files.data.parent / "c2"
    setup.init_from_bundle(data, files.bundle, "c2")
    config = CoordinatorFiles(data).read_config()
    assert (config.own, config.own_record) == (record("c2", 7452), None)


def test_configuration_has_no_field_that_is_as_it_comes_and_that_an_older_version_might_refuse(
    files: CoordinatorFiles,
) -> None:
    assert set(msgspec.json.decode(files.config.read_bytes())) == {"id", "cluster", "members"}
    files.write_config(msgspec.structs.replace(files.read_config(), gc_grace_s=60))
    assert msgspec.json.decode(files.config.read_bytes())["gc_grace_s"] == 60


def signs_anew(files: CoordinatorFiles) -> str:
    """The state takes another intermediate; its certificate."""
    made = setup.new_intermediate(files.data, files.root_key)
    applied(files, AddIntermediate(caller=ADMIN, pem=made.pem, wrapped=made.wrapped))
    return made.pem


def applied(files: CoordinatorFiles, *commands: AnyCommand) -> None:
    with closing(Store(files.state)) as store:
        for index, command in enumerate(commands, store.applied_index() + 1):
            envelope = encode_envelope(Envelope(0, 0, 0, now_ms(), command))
            store.apply([Entry(index, 1, EntryKind.COMMAND, envelope)])


def test_certificates_are_signed_by_the_newest_intermediate_that_bundle_or_state_knows(
    files: CoordinatorFiles, tmp_path: Path
) -> None:
    newest = certificates_in(signs_anew(files))
    later = CoordinatorFiles(tmp_path / "c3")
    setup.init_from_bundle(later.data, later_bundle(files), "c3", record("c3"))
    assert later.credential().chain()[1:] == newest
    restore.begin_again(files.data, record("c4"))
    assert files.credential().chain()[1:] == newest


def test_bundle_that_can_sign_no_more_is_refused_before_anything_is_made(
    files: CoordinatorFiles, tmp_path: Path
) -> None:
    then = datetime.now(UTC) - timedelta(days=400)
    root_key = key_from_pem(files.root_key.read_bytes())
    ended = make_intermediate(files.root.read_text(), root_key, "lab", files.read_cluster_key(), now=then)
    bundle = setup.read_bundle(later_bundle(files))
    old = tmp_path / "old.bundle"
    write_secret(old, msgspec.msgpack.encode(msgspec.structs.replace(bundle, intermediate=ended)))
    with pytest.raises(InvalidRequest, match="has expired"):
        setup.init_from_bundle(tmp_path / "c3", old, "c3", record("c3"))
    assert not (tmp_path / "c3").exists()


def test_member_that_comes_later_keeps_its_own_address_and_whom_to_ask(files: CoordinatorFiles) -> None:
    write_known(files.known, [record("c2", 7452), record("c7", 7462)])
    data = files.data.parent / "c3"
    setup.init_from_bundle(data, later_bundle(files), "c3", record("c3", 7472))
    made = CoordinatorFiles(data)
    assert made.read_config().own == record("c3", 7472)
    assert read_known(made.known, []) == [record("c2", 7452), record("c7", 7462)]
    secrets = (made.genesis, made.cluster_key, made.credential_path)
    assert [path.stat().st_mode & 0o777 for path in secrets] == [0o600] * 3
    ledger = open_ledger(made, timed_sync(Metrics("test").registry))
    try:
        assert ledger.store.members().voters == ("c1", "c2")
        assert (ledger.store.applied(), ledger.log.last_index()) == ((1, 1), 1)
    finally:
        ledger.close()


@pytest.mark.parametrize(
    ("coordinator_id", "own"),
    [("c3", None), ("c1", None), ("c1", record("c1")), ("C 3", record("C 3")), ("c7", record("c7"))],
)
def test_bundle_of_a_running_cluster_makes_only_new_members(
    files: CoordinatorFiles, coordinator_id: str, own: CoordinatorRecord | None
) -> None:
    write_known(files.known, [record("c1"), record("c7", 7462)])
    data = files.data.parent / "other"
    with pytest.raises(InvalidRequest):
        setup.init_from_bundle(data, later_bundle(files), coordinator_id, own)
    assert not data.exists()


def test_what_is_no_bundle_is_refused(files: CoordinatorFiles, tmp_path: Path) -> None:
    no_bundle = tmp_path / "none"
    key = b"k" * 32
    for content in (b"", b"\x93\x01", msgspec.msgpack.encode(setup.Bundle(cluster_key=key, genesis=b"x"))):
        write_secret(no_bundle, content)
        with pytest.raises(InvalidRequest, match="bundle"):
            setup.init_from_bundle(tmp_path / "other", no_bundle, "c2")
    files.bundle.chmod(0o640)
    with pytest.raises(UnsafeSecretFile):
        setup.init_from_bundle(tmp_path / "other", files.bundle, "c2")


def test_cluster_key_that_systemd_hands_over_is_used_before_that_of_the_directory(
    files: CoordinatorFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    handed_over = files.cluster_key.rename(credentials / "cluster.key")
    handed_over.chmod(0o440)  # as systemd shows it beside an access list
    with pytest.raises(UnsafeSecretFile):
        setup.mint_admin_token(files.data)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    write_secret(files.cluster_key, b"of another cluster")
    assert setup.mint_admin_token(files.data)
    assert setup.read_bundle(later_bundle(files)).cluster_key == handed_over.read_bytes()
    handed_over.chmod(0o644)
    with pytest.raises(UnsafeSecretFile):
        setup.mint_admin_token(files.data)


def test_credentials_of_systemd_without_the_cluster_key_change_nothing(
    files: CoordinatorFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert setup.mint_admin_token(files.data)


def test_directory_of_a_coordinator_is_not_used_twice(files: CoordinatorFiles) -> None:
    with pytest.raises(Conflict):
        setup.init_from_bundle(files.data, files.bundle, "c2")
    with pytest.raises(Conflict):
        restore.write_bundle(files.data, files.bundle)


def snapshot_of(files: CoordinatorFiles) -> Path:
    path = files.data.parent / "kept.snapshot"
    restore.write_snapshot(files.data, path)
    return path


def test_restored_cluster_has_one_member_and_remembers_the_others(files: CoordinatorFiles) -> None:
    data = files.data.parent / "r1"
    snapshot = snapshot_of(files)
    assert snapshot.stat().st_mode & 0o777 == 0o600
    token = restore.restore(data, snapshot=snapshot, bundle_path=files.bundle, own=record("r1"))
    assert token is not None
    assert token.read_text().startswith("eyJ")
    ledger = open_ledger(CoordinatorFiles(data), timed_sync(Metrics("test").registry))
    try:
        assert (ledger.store.members().voters, ledger.store.members().learners) == (("r1",), ())
        assert ledger.store.applied() == (3, 2)
        assert (ledger.log.first_index(), ledger.log.last_index(), ledger.log.term(3)) == (4, 3, 2)
    finally:
        ledger.close()
    assert CoordinatorFiles(data).read_config().own.role == VOTER


def test_snapshot_is_restored_only_whole_of_this_cluster_and_under_a_new_id(
    files: CoordinatorFiles, tmp_path: Path
) -> None:
    snapshot = snapshot_of(files)
    other = CoordinatorFiles(tmp_path / "other")
    setup.init_cluster(
        other.data, coordinator_id="o1", cluster="other", members=[record("o1")], development=True
    )
    later = tmp_path / "other.bundle"
    restore.write_bundle(other.data, later)
    torn = tmp_path / "torn"
    torn.write_bytes(snapshot.read_bytes()[:5000])
    text = tmp_path / "text"
    text.write_text("no database")
    for source, bundle, coordinator_id in (
        (torn, files.bundle, "r1"),
        (text, files.bundle, "r1"),
        (snapshot, later, "r1"),
        (snapshot, files.bundle, "c1"),
        (snapshot, files.bundle, "c2"),
    ):
        with pytest.raises(InvalidRequest):
            restore.restore(tmp_path / "r1", snapshot=source, bundle_path=bundle, own=record(coordinator_id))
        assert not CoordinatorFiles(tmp_path / "r1").config.exists()
        assert not CoordinatorFiles(tmp_path / "r1").state.exists()
    with pytest.raises(Conflict):
        restore.restore(files.data, snapshot=snapshot, bundle_path=files.bundle, own=record("r1"))
    with pytest.raises(Conflict):
        restore.write_snapshot(files.data, snapshot)


def test_snapshot_is_restored_only_as_it_was_written(files: CoordinatorFiles, tmp_path: Path) -> None:
    snapshot, data = snapshot_of(files), tmp_path / "r1"
    digest = digest_beside(snapshot)
    assert digest.stat().st_mode & 0o777 == 0o600
    checked = subprocess.run(["sha256sum", "-c", digest.name], cwd=snapshot.parent, check=False)
    assert checked.returncode == 0
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole.replace(b"127.0.0.1", b"127.0.0.7"))  # a sound database for SQLite
    with pytest.raises(InvalidRequest, match="damaged"):
        restore.restore(data, snapshot=snapshot, bundle_path=files.bundle, own=record("r1"))
    assert list(data.iterdir()) == []
    snapshot.write_bytes(whole)
    restore.restore(data, snapshot=snapshot, bundle_path=files.bundle, own=record("r1"))


def test_digest_of_an_earlier_snapshot_is_not_taken_for_the_new_ones(files: CoordinatorFiles) -> None:
    snapshot = snapshot_of(files)
    snapshot.unlink()
    with pytest.raises(Conflict, match=r"sha256 already exists"):
        snapshot_of(files)
    assert not snapshot.exists()


def test_snapshot_without_room_for_its_digest_leaves_nothing(
    files: CoordinatorFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(restore, "write_digest", fail)
        with pytest.raises(OSError, match="no room"):
            snapshot_of(files)
    restore.restore(
        files.data.parent / "r1", snapshot=snapshot_of(files), bundle_path=files.bundle, own=record("r1")
    )


def test_coordinator_begins_again_beside_what_it_was(files: CoordinatorFiles) -> None:
    settings = {"digest_s": 3.0, "down_after_s": 7200.0, "gc_grace_s": 2592000, "schedules": {"gc": 0.0}}
    files.write_config(msgspec.structs.replace(files.read_config(), **settings))
    files.diverged.write_text("odd")
    (files.log / "extra").write_text("kept")
    aside = restore.begin_again(files.data, record("c3"))
    config = files.read_config()
    assert (config.id, config.own) == ("c3", record("c3"))
    assert {name: getattr(config, name) for name in settings} == settings
    assert (aside / "diverged").exists()
    assert (aside / "log" / "extra").exists()
    assert not (files.log / "extra").exists()
    store = Store(files.state)
    assert store.applied() == (1, 1)
    store.close()
    check_not_diverged(files.diverged)


def test_coordinator_older_than_its_first_intermediate_begins_again_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Then(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) - timedelta(days=400)

    with monkeypatch.context() as patch:
        patch.setattr(setup, "datetime", Then)
        members = [record("c1")]
        setup.init_cluster(tmp_path, coordinator_id="c1", cluster="lab", members=members, development=True)
    files = CoordinatorFiles(tmp_path)
    signs_anew(files)
    aside = files.data / "damaged-c1-1"
    aside.mkdir()
    for path in files.data.glob("state.sqlite*"):
        path.rename(aside / path.name)
    restore.check_rebuildable(files, record("c9"))
    with monkeypatch.context() as patch:  # the new state is there, and knows the first intermediate alone
        patch.setattr(setup, "new_leaf", lambda *_: (tmp_path / "not there").read_text())
        with pytest.raises(FileNotFoundError):
            restore.begin_again(files.data, record("c9"))
    assert files.state.exists()
    restore.check_rebuildable(files, record("c9"))
    files.state.unlink()
    for path in files.data.glob("damaged-*/state.sqlite"):
        path.write_bytes(b"no database")
    with pytest.raises(InvalidRequest, match="Create a bundle on another coordinator"):
        restore.check_rebuildable(files, record("c9"))


def test_coordinator_does_not_begin_again_while_it_runs_or_under_a_known_id(files: CoordinatorFiles) -> None:
    for known in ("c1", "c2"):
        with pytest.raises(InvalidRequest):
            restore.begin_again(files.data, record(known))
    log = SegmentLog.open(files.log)
    try:
        with pytest.raises(Conflict, match="is in use"):
            restore.begin_again(files.data, record("c3"))
    finally:
        log.close()
    files.genesis.unlink()
    with pytest.raises(NotInitialised):
        restore.begin_again(files.data, record("c3"))
    assert files.read_config().id == "c1"


@pytest.mark.parametrize("kind", ["torn", "noise", "other", "text", "key", "bit"])
def test_damaged_first_entry_makes_no_bundle_and_no_coordinator(
    files: CoordinatorFiles, tmp_path: Path, kind: str
) -> None:
    other = CoordinatorFiles(tmp_path / "other")
    setup.init_cluster(
        other.data, coordinator_id="o1", cluster="other", members=[record("o1")], development=True
    )
    whole = files.genesis.read_bytes()
    wrapped = setup.bootstrap_of(whole).user_token_wrapped
    damaged = {
        "torn": whole[:1000],
        "noise": b"\xc1" * 100,
        "other": other.genesis.read_bytes(),
        "text": whole.replace(b"CERTIFICATE", b"CERT\xc9FICATE", 1),  # no UTF-8
        "key": whole.replace(wrapped, wrapped[:-1] + bytes([wrapped[-1] ^ 1])),
        "bit": whole.replace(b"lab", b"lac"),
    }[kind]
    files.genesis.write_bytes(damaged)
    if kind == "key":
        digest_beside(files.genesis).unlink()  # as in directories of older versions
    told = "does not decrypt" if kind == "key" else r"genesis\.bin (is|does not) .*copy it from another"
    with pytest.raises(InvalidRequest, match=told):
        later_bundle(files)
    assert not (tmp_path / "later.bundle").exists()
    with pytest.raises(InvalidRequest, match=told):
        restore.begin_again(files.data, record("c3"))
    if kind == "key":
        return
    assert (files.read_config().id, files.log.is_dir()) == ("c1", True)
    (found,) = examine(files, deep=False).problems
    assert (found.where, "no bundle can be created" in found.what) == (files.genesis, True)


def test_restore_that_fails_leaves_nothing_and_can_be_tried_again(
    files: CoordinatorFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, data = snapshot_of(files), tmp_path / "r1"
    bundle = setup.read_bundle(files.bundle)
    key = bytes([bundle.cluster_key[0] ^ 1]) + bundle.cluster_key[1:]
    wrong = tmp_path / "wrong.bundle"
    write_secret(wrong, msgspec.msgpack.encode(msgspec.structs.replace(bundle, cluster_key=key)))
    with pytest.raises(InvalidRequest, match="its key does not decrypt"):
        restore.restore(data, snapshot=snapshot, bundle_path=wrong, own=record("r1"))
    assert list(data.iterdir()) == []
    with monkeypatch.context() as patch:  # the very last step
        patch.setattr(restore, "mint_admin_token", lambda _: (data / "not there").read_text())
        with pytest.raises(FileNotFoundError):
            restore.restore(data, snapshot=snapshot, bundle_path=files.bundle, own=record("r1"))
    assert list(data.iterdir()) == []
    restore.restore(data, snapshot=snapshot, bundle_path=files.bundle, own=record("r1"))


def test_restore_of_a_cluster_whose_first_admin_is_disabled_comes_without_a_token(
    files: CoordinatorFiles, tmp_path: Path
) -> None:
    applied(files, PutUser(caller=ADMIN, user_id="alice", roles=["admin"], groups=None, disabled=None))
    with closing(Store(files.state)) as store:
        alice = Caller("alice", store.token_generation("alice") or 0)
    applied(files, PutUser(caller=alice, user_id="admin", roles=None, groups=None, disabled=True))
    path = snapshot_of(files)
    data = tmp_path / "r1"
    ended = CliRunner().invoke(
        coordinator,
        f"restore --snapshot {path} --bundle {files.bundle} --data {data} --id r1 --address 10.0.0.1",
    )
    assert (ended.exit_code, "use the token of another admin" in ended.output) == (0, True)
    assert not CoordinatorFiles(data).admin_token.exists()
    ledger = open_ledger(CoordinatorFiles(data), timed_sync(Metrics("test").registry))
    ledger.close()


def test_certificate_is_not_replaced_under_a_coordinator_that_runs(files: CoordinatorFiles) -> None:
    before = files.credential_path.read_bytes()
    log = SegmentLog.open(files.log)
    try:
        with pytest.raises(Conflict, match="is in use"):
            setup.renew_certificate(files.data, files.root_key)
        assert files.credential_path.read_bytes() == before
    finally:
        log.close()
    setup.renew_certificate(files.data, files.root_key)
    assert files.credential_path.read_bytes() != before


def test_coordinator_does_not_begin_again_under_an_id_that_its_state_remembers(
    files: CoordinatorFiles,
) -> None:
    with closing(sqlite3.connect(files.state)) as state, state:
        state.execute("UPDATE coordinators SET coordinator_id = 'c9' WHERE coordinator_id = 'c2'")
    with pytest.raises(InvalidRequest, match="is or was another"):
        restore.check_rebuildable(files, record("c9"))


def test_coordinator_that_diverged_does_not_start_again(tmp_path: Path) -> None:
    check_not_diverged(tmp_path / "diverged")
    mark_diverged(tmp_path / "diverged", "c2")
    with pytest.raises(StateDiverged, match="coordinator rebuild"):
        check_not_diverged(tmp_path / "diverged")


def test_configuration_of_an_older_version_is_read_and_a_bad_one_is_refused(files: CoordinatorFiles) -> None:
    older = {"id": "c1", "cluster": "lab", "members": [msgspec.to_builtins(record("c1"))]}
    del older["members"][0]["role"]
    files.config.write_bytes(msgspec.json.encode(older))
    assert files.read_config() == CoordinatorConfig(id="c1", cluster="lab", members=[record("c1")])
    files.config.write_bytes(msgspec.json.encode(older | {"digest_s": 0}))
    with pytest.raises(NotInitialised, match="digest_s"):
        files.read_config()
