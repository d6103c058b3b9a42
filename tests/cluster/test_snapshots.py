"""Everything is deleted, and comes back from a snapshot: file by file, and as a whole cluster."""

import hashlib
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.processes import stop_children, wait_until
from tests.cluster.drills import drill
from tests.cluster.harness import Cluster, run_filestore
from tests.cluster.test_coordinators import Guest, answers, done
from tests.cluster.test_restored_cluster import healthy, restored

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
DEFAULT_BUCKET = "00000000-0000-0000-0000-000000000000"
SOON_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as started:
        yield started


def put(cluster: Cluster, kind: str, content: bytes, /, **fields: Any) -> str:
    made = cluster.post(kind, {"size_bytes": len(content), **fields})
    assert made.status == 201, made.body
    answer = cluster.request("PUT", made.json["upload_url"], content=content)
    assert answer.status == 200, answer.body
    cluster.wait_everywhere(hashlib.sha256(content).hexdigest())
    return str(made.json["file_uuid"])


def stored(cluster: Cluster) -> dict[str, bytes]:
    """A file of each kind, and a backup upon another."""
    contents = [os.urandom(200_000) for _ in range(4)]
    project = {"filename": "lab.gns3project", "project_id": "p1", "path": "labs/r1"}
    image = {"filename": "disk.qcow2", "virt_type": "qemu", "format": "qcow2"}
    full = {"filename": "full.tar", "backup_type": "full"}
    ids = [
        put(cluster, "/project-files", contents[0], **project),
        put(cluster, "/vms", contents[1], **image),
        put(cluster, "/backups", contents[2], **full),
    ]
    upon = {"filename": "next.tar", "backup_type": "incremental", "parent_backup_uuid": ids[2]}
    ids.append(put(cluster, "/backups", contents[3], **upon))
    return dict(zip(ids, contents, strict=True))


def delete_everything(cluster: Cluster, *, trash_days: int = 0) -> None:
    """As an admin, and let gc collect at once what may go."""
    days = {"trash_days": trash_days}
    assert cluster.request("PATCH", f"/buckets/{DEFAULT_BUCKET}", body=days).status == 200
    listed = cluster.get(f"/buckets/{DEFAULT_BUCKET}/files").json["files"]
    for file in reversed(listed):
        assert cluster.request("DELETE", f"/files/{file['file_uuid']}").status == 200
    assert by_name(cluster) == {}
    done(cluster, "job", "run", "gc", "--wait", "--grace", "0", "--yes-really")


def test_everything_that_was_deleted_comes_back_from_the_trash(cluster: Cluster) -> None:
    files = stored(cluster)
    delete_everything(cluster, trash_days=7)
    with drill("everything deleted, restored from the trash"):
        done(cluster, "trash", "restore", "--all")
    assert {*by_name(cluster).values()} == {*files}
    for file_uuid, content in files.items():
        assert cluster.get(f"/files/{file_uuid}").body == content


def snapshot(cluster: Cluster) -> dict[str, Any]:
    """Take one; the result of the run."""
    run: dict[str, Any] = json.loads(done(cluster, "job", "run", "snapshot", "--wait", "--json"))
    result: dict[str, Any] = run["result"]
    return result


def by_name(cluster: Cluster) -> dict[str, str]:
    listed = cluster.get(f"/buckets/{DEFAULT_BUCKET}/files").json["files"]
    return {file["filename"]: file["file_uuid"] for file in listed}


def test_deleted_files_come_back_from_a_snapshot_while_the_cluster_runs(cluster: Cluster) -> None:
    files = stored(cluster)
    taken = snapshot(cluster)
    assert (cluster.directory / str(taken["coordinator"]) / "backups" / str(taken["file"])).exists()
    delete_everything(cluster)
    snapshot_id = str(taken["file"]).removesuffix(".sqlite")
    assert snapshot_id in done(cluster, "snapshot", "ls")
    listed = [json.loads(line) for line in done(cluster, "snapshot", "ls", "--json").splitlines()]
    assert [(each["snapshot_id"], each["hold"], each["held_blobs"]) for each in listed] == [
        (snapshot_id, "held", 4)
    ]
    assert "1 snapshot of the metadata keep" in done(cluster, "status")
    found = done(cluster, "snapshot", "files", snapshot_id, "--bucket", "default", "--json").splitlines()
    assert [json.loads(line)["file_uuid"] for line in found] == [*files]
    for member in cluster.members:  # one coordinator has the file, and each member asks that one
        assert len(cluster.get(f"/cluster/snapshots/{snapshot_id}/files", node=member).json["files"]) == 4
    (only,) = done(cluster, "snapshot", "files", snapshot_id, "--name", "disk.qcow2", "--json").splitlines()
    with drill("a file from a snapshot"):
        done(cluster, "snapshot", "restore-file", snapshot_id, json.loads(only)["file_uuid"])
    assert cluster.get(f"/files/{by_name(cluster)['disk.qcow2']}").body == [*files.values()][1]
    with drill("all files from a snapshot"):
        done(cluster, "snapshot", "restore-file", snapshot_id, "--all", "--bucket", "default")
    names = by_name(cluster)
    assert {*names} == {"lab.gns3project", "disk.qcow2", "full.tar", "next.tar"}
    assert not {*names.values()} & {*files}
    wanted = dict(zip(("lab.gns3project", "disk.qcow2", "full.tar", "next.tar"), files.values(), strict=True))
    for name, content in wanted.items():
        assert cluster.get(f"/files/{names[name]}").body == content
    assert cluster.get(f"/project-files/{names['lab.gns3project']}").json["path"] == "labs/r1"
    assert cluster.get(f"/backups/{names['next.tar']}").json["parent_backup_uuid"] == names["full.tar"]
    entries = cluster.get("/audit?action=restore_snapshot_file").json["entries"]
    assert {entry["target"] for entry in entries} <= {*files}


def test_whole_cluster_comes_back_from_a_snapshot_after_everything_was_deleted(cluster: Cluster) -> None:
    files = stored(cluster)
    before = cluster.post("/cluster/join-tokens", {}).json["token_id"]
    taken = snapshot(cluster)
    after = cluster.post("/cluster/join-tokens", {}).json["token_id"]
    path = cluster.directory / str(taken["coordinator"]) / "backups" / str(taken["file"])
    delete_everything(cluster)
    for content in files.values():
        assert all(cluster.holds(node, hashlib.sha256(content).hexdigest()) for node in cluster.nodes)
    bundle = cluster.directory / "kept.bundle"
    data = str(cluster.data(cluster.coordinators[0]))
    done(cluster, "coordinator", "bundle", "--data", data, "--output", str(bundle))
    told = done(cluster, "snapshot", "verify", str(path), "--bundle", str(bundle))
    assert f"{path.name} can be restored: 4 files, 3 nodes" in told
    cluster.kill(*cluster.coordinators)
    guest = Guest(cluster, "r1")
    kept = ("--snapshot", str(path), "--bundle", str(bundle))
    try:
        with drill("everything deleted, restored from a snapshot"):
            environment = restored(cluster, kept, guest)
            wait_until(lambda: healthy(cluster, guest.member), what="all nodes are back", timeout_s=SOON_S)
        token = (guest.data / "admin.token").read_text().strip()
        for node in cluster.nodes:
            wait_until(partial(answers, cluster, node), what=f"{node.id} serves", timeout_s=SOON_S)
            for file_uuid, content in files.items():
                assert cluster.get(f"/files/{file_uuid}", node=node, token=token).body == content
        tokens = cluster.get("/cluster/join-tokens", node=guest.member, token=token).json["join_tokens"]
        assert not {before, after} & {each["token_id"] for each in tokens}  # either may have been used since
        entries = cluster.get("/audit", node=guest.member, token=token).json["entries"]
        assert entries[-1]["action"] == "restore_cluster"
        for _ in range(2):  # of lower indexes than those of the lost future
            ran = run_filestore(["job", "run", "snapshot", "--wait"], environment)
            assert ran.returncode == 0, ran.stderr.decode()
    finally:
        stop_children([cluster._development.children.pop(guest.id)])
