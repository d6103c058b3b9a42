"""Snapshots of the metadata in a bucket of another cluster, and the drill for which they lie there."""

import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.dev_cluster import Member
from deploy.processes import stop_children, wait_until
from tests.cluster.drills import drill
from tests.cluster.harness import Cluster, run_filestore
from tests.cluster.test_coordinators import Guest, done

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
SOON_S = 90.0
METRIC = "filestore_offsite_snapshot_timestamp_seconds"


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "other", node_count=1, replicas=1, write_quorum=1) as started:
        yield started


def send_to(cluster: Cluster, other: Cluster, *, keep: int = 2) -> str:
    """Tell every coordinator of the bucket, with a token of its own; the bucket's id."""
    bucket = str(other.post("/buckets", {"name": "snapshots"}).json["bucket_id"])
    for member in cluster.coordinators:
        data = cluster.data(member)
        token = data / "other.token"
        token.touch(mode=0o600)
        token.write_text(other.admin_token)
        cluster.remember(other.admin_token)
        settings: dict[str, Any] = {
            "urls": ["https://127.0.0.1:1", *(node.url for node in other.nodes)],  # one is away
            "ca": str(other.ca),
            "token_file": "other.token",
            "bucket_id": bucket,
            "keep": keep,
        }
        (data / "offsite.json").write_text(json.dumps(settings))
        cluster.terminate(member)
        cluster.restart(member)
        cluster.wait_healthy()
    return bucket


def stored(other: Cluster, bucket: str) -> list[str]:
    answer = other.get(f"/buckets/{bucket}/files?status=available")
    return sorted(file["filename"] for file in answer.json["files"])


def sent_at(cluster: Cluster) -> list[float]:
    """The metric of every coordinator."""
    texts = [cluster.get("/metrics", node=member).body.decode() for member in cluster.coordinators]
    return [
        float(line.split()[-1]) for text in texts for line in text.splitlines() if line.startswith(METRIC)
    ]


def has_sent(cluster: Cluster) -> bool:
    """Whether a run of the job has ended well, and none is under way."""
    (job,) = (each for each in cluster.get("/jobs").json["jobs"] if each["job_name"] == "snapshot")
    return bool(job.get("last_run") and job["last_run"]["status"] == "completed")


def snapshot(cluster: Cluster) -> None:
    assert "completed" in done(cluster, "job", "run", "snapshot", "--wait")


def test_all_coordinators_are_lost_and_come_back_from_what_lies_elsewhere(
    tmp_path: Path, other: Cluster
) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        kept = tmp_path / "kept.bundle"  # on the first day, beside the root key
        first = str(cluster.data(cluster.coordinators[0]))
        done(cluster, "coordinator", "bundle", "--data", first, "--output", str(kept))
        content = os.urandom(300_000)
        file_uuid = cluster.store_everywhere(content)
        bucket = send_to(cluster, other)
        wait_until(lambda: has_sent(cluster), what="the first, by itself", timeout_s=SOON_S)
        for _ in range(2):
            snapshot(cluster)
        names = stored(other, bucket)
        assert len(names) == 6, names  # the newest two, each with digest and note
        assert all(0 < at_s <= time.time() for at_s in sent_at(cluster))
        assert len(sent_at(cluster)) == 3
        tried = json.loads(done(cluster, "job", "run", "rehearse", "--wait", "--json"))["result"]
        assert (tried["file"], tried["files"], tried["nodes"]) == (
            max(name for name in names if name.endswith(".sqlite")),
            1,
            3,
        )
        assert not [*cluster.directory.glob("*/rehearsal-*")]
        restored_from_the_bucket(cluster, other, names, kept)
        cluster.kill(*cluster.coordinators)
        guests = [Guest(cluster, name) for name in ("r1", "r2", "r3")]
        try:
            with drill("all coordinators lost"):
                restore(cluster, tmp_path, kept, guests)
                wait_until(
                    lambda: set(node_states(cluster, guests[0].member).values()) == {"healthy"},
                    what="nodes of the new coordinators",
                    timeout_s=SOON_S,
                )
            token = cluster.remember((guests[0].data / "admin.token").read_text().strip())
            for node in cluster.nodes:
                assert cluster.get(f"/files/{file_uuid}", node=node, token=token).body == content
            both_histories_stay(cluster, other, bucket, names, guests[0])
            assert (
                cluster.post("/project-files", {"filename": "a", "project_id": "b"}, token=token).status
                == 201
            )
        finally:
            children = cluster._development.children
            stop_children([children.pop(guest.id) for guest in guests if guest.id in children])


def restored_from_the_bucket(cluster: Cluster, other: Cluster, names: list[str], kept: Path) -> None:
    """Fetch the newest with its digest, by name."""
    newest = max(name for name in names if name.endswith(".sqlite"))
    for name in (newest, f"{newest}.sha256"):
        done(other, "get", name, "-o", str(kept.with_name(name)))
    kept.with_name(newest).rename(kept.with_name("lab.sqlite"))
    digest = kept.with_name(f"{newest}.sha256")
    kept.with_name("lab.sqlite.sha256").write_text(digest.read_text())


def both_histories_stay(cluster: Cluster, other: Cluster, bucket: str, lost: list[str], guest: Guest) -> None:
    """The restored cluster sends snapshots of lower indexes; those of the lost future are left alone."""
    environment = cluster.command_environment(
        FILESTORE_URL=guest.member.url, FILESTORE_TOKEN_FILE=str(guest.data / "admin.token")
    )
    for _ in range(3):
        ran = run_filestore(["job", "run", "snapshot", "--wait"], environment)
        assert ran.returncode == 0, ran.stderr.decode()
    names = stored(other, bucket)
    assert set(lost) < set(names)
    own = set(names) - set(lost)
    assert len(own) == 6, own  # the newest two
    histories = [{name.split("-")[1] for name in each} for each in (lost, own)]
    assert [len(each) for each in histories] == [1, 1]
    assert histories[0] != histories[1]


def send_on(cluster: Cluster, guest: Guest) -> None:
    """The new coordinator sends to where the old ones did."""
    for name in ("other.token", "offsite.json"):
        path = guest.data / name
        path.touch(mode=0o600)
        path.write_text((cluster.data(cluster.coordinators[0]) / name).read_text())


def restore(cluster: Cluster, directory: Path, kept: Path, guests: list[Guest]) -> None:
    """Three new coordinators, by the commands of the runbook; the nodes are told and started again."""
    first = guests[0]
    place = ("--data", str(first.data), "--id", first.id, "--address", first.address)
    snapshot = directory / "lab.sqlite"
    done(cluster, "coordinator", "restore", "--snapshot", str(snapshot), "--bundle", str(kept), *place)
    send_on(cluster, first)
    cluster._development.children[first.id] = first.start()
    environment = cluster.command_environment(
        FILESTORE_URL=first.member.url, FILESTORE_TOKEN_FILE=str(first.data / "admin.token")
    )
    for guest in guests[1:]:
        bundle = directory / f"{guest.id}.bundle"
        place = ("--data", str(guest.data), "--id", guest.id, "--address", guest.address)
        done(cluster, "coordinator", "bundle", "--data", str(first.data), "-o", str(bundle))
        done(cluster, "coordinator", "init", "--bundle", str(bundle), *place)
        send_on(cluster, guest)
        cluster._development.children[guest.id] = guest.start()
        wait_until(partial(is_added, guest, environment), what=f"{guest.id} is added", timeout_s=SOON_S)
    for node in cluster.nodes:
        cluster.terminate(node)
        data = str(cluster.data(node))
        done(cluster, "node", "reconnect", "--data", data, "--coordinator", first.member.url)
        cluster.restart(node)


def is_added(guest: Guest, environment: dict[str, str]) -> bool:
    add = ["coordinator", "add", "--id", guest.id, "--address", guest.address]
    return run_filestore(add, environment).returncode == 0


def node_states(cluster: Cluster, asked: Member) -> dict[str, str]:
    """By a coordinator, which the old nodes' token does not bother."""
    answer = cluster.get("/cluster/status", node=asked)
    return {node["id"]: node["state"] for node in answer.json["nodes"]} if answer.status == 200 else {"": ""}
