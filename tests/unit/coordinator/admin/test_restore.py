"""What a restore takes of a snapshot, and what of a bundle that is older or newer than it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from ca.certificates import certificates_in
from ca.errors import InvalidRequest
from ca.keys import key_from_pem
from ca.secretfiles import write_secret
from coordinator.admin import restore, setup
from coordinator.admin.authority import make_intermediate
from coordinator.storage.config import CoordinatorFiles
from deploy.commands.coordinator import coordinator
from metadata.protocol.commands import AddIntermediate, RecordCoordinators
from tests.unit.coordinator.admin.test_setup import applied, later_bundle, record, snapshot_of
from tests.unit.state import ADMIN


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


@pytest.mark.parametrize("is_newer", [True, False])
def test_restore_signs_by_the_intermediate_that_ends_later_the_bundles_or_the_snapshots(
    files: CoordinatorFiles, tmp_path: Path, *, is_newer: bool
) -> None:
    """That of the snapshot may have ended since; and a bundle may be as old as the cluster."""
    snapshot, bundle = snapshot_of(files), later_bundle(files)
    root_key = key_from_pem(files.root_key.read_bytes())
    other = make_intermediate(
        files.root.read_text(),
        root_key,
        "lab",
        files.read_cluster_key(),
        now=datetime.now(UTC) + timedelta(hours=1 if is_newer else -1),
    )
    changed = msgspec.structs.replace(setup.read_bundle(bundle), intermediate=other)
    write_secret(bundle, msgspec.msgpack.encode(changed))
    restore.restore(tmp_path / "r1", snapshot=snapshot, bundle_path=bundle, own=record("r1"))
    signed_by = CoordinatorFiles(tmp_path / "r1").credential().chain()[1:]
    assert (signed_by == certificates_in(other.pem)) is is_newer


def test_snapshot_whose_intermediate_has_ended_is_restored_and_the_root_key_makes_a_certificate(
    files: CoordinatorFiles, tmp_path: Path
) -> None:
    root_key, then = key_from_pem(files.root_key.read_bytes()), datetime.now(UTC) - timedelta(days=400)
    ended = make_intermediate(files.root.read_text(), root_key, "lab", files.read_cluster_key(), now=then)
    applied(files, AddIntermediate(caller=ADMIN, pem=ended.pem, wrapped=ended.wrapped))
    options = ["restore", "--snapshot", str(snapshot_of(files)), "--bundle", str(files.bundle)]
    new = CoordinatorFiles(tmp_path / "r1")
    options += ["--data", str(new.data), "--id", "r1", "--address", "127.0.0.1"]
    done = CliRunner().invoke(coordinator, options)
    assert done.exit_code == 0, done.output
    assert f"renew-certificate --data {new.data} --root-key FILE" in done.output
    assert not new.credential_path.exists()
    setup.renew_certificate(new.data, files.root_key)
    assert new.credential().chain()[0].not_valid_after_utc > datetime.now(UTC)


def test_snapshot_is_not_restored_under_a_name_that_it_alone_knows(
    files: CoordinatorFiles, tmp_path: Path
) -> None:
    """A bundle may be older than the coordinators that came since."""
    applied(files, RecordCoordinators(coordinators=[record("c1"), record("c9", 7492)]))
    snapshot = snapshot_of(files)
    with pytest.raises(InvalidRequest, match="c9 is or was another coordinator"):
        restore.restore(tmp_path / "r1", snapshot=snapshot, bundle_path=files.bundle, own=record("c9"))
