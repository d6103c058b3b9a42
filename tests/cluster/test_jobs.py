"""Background jobs of real coordinators, from the command line, and through the death of the leader."""

import asyncio
import contextlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ca.errors import InvalidRequest
from deploy.processes import wait_until
from metadata.model.jobs import JOBS
from metadata.model.records import Caller, PermissionRecord
from metadata.protocol.commands import GrantPermission
from runtime.clock import now_ms
from tests.cluster.clocks import Clocks
from tests.cluster.harness import Cluster
from tests.cluster.test_members import as_node

SOON_S = 30.0
BUCKETS = 4
GRANTS = 1000  # the most that a bucket may have: `expire` needs a third of a second for them
GRANTS_LIVE_MS = (8000, 25_000)  # longer than making them takes; on a busy machine that is the second


def run_job(cluster: Cluster, name: str) -> Any:
    """The run that `filestore job run --wait` waited for."""
    done = cluster.filestore("job", "run", name, "--wait")
    assert done.returncode == 0, done.stderr.decode()
    run_id, line = done.stdout.decode().splitlines()
    assert line.startswith("completed {")
    return json.loads(cluster.filestore("job", "show", run_id).stdout)


@pytest.mark.long
def test_file_past_its_retention_is_tombstoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(tmp_path, monkeypatch)
    with Cluster(tmp_path / "cluster") as cluster:
        ended, longer, kept = (cluster.store(b"for an hour", retention_period=1) for _ in range(3))
        expires_at = cluster.get(f"/project-files/{ended}").json["expires_at"]
        for file_uuid, hours in ((longer, 2), (kept, None)):
            path, body = f"/project-files/{file_uuid}", {"retention_period": hours}
            assert cluster.request("PATCH", path, body=body).status == 200
        for member in cluster.members:
            clocks.move(cluster.pid(member), 3601, steady_s=3601)

        def is_gone() -> bool:
            assert cluster.post("/jobs/expire").status in (202, 409, 503)
            return cluster.get(f"/files/{ended}").status == 410

        wait_until(is_gone, what="the end", timeout_s=3 * SOON_S)
        record = cluster.get(f"/project-files/{ended}").json
        assert record["status"] == "tombstoned"
        assert record["expires_at"] > expires_at  # when the record goes as well
        for file_uuid in (longer, kept):
            assert cluster.get(f"/files/{file_uuid}").body == b"for an hour"


def test_snapshot_job_leaves_a_private_copy_with_the_leader(cluster: Cluster) -> None:
    file_uuid = cluster.create()["file_uuid"]
    run = run_job(cluster, "snapshot")
    leader = next(member for member in cluster.coordinators if member.id == run["node_id"])
    path = cluster.data(leader) / "backups" / run["result"]["file"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == run["result"]["bytes"]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT 1 FROM files WHERE file_uuid = ?", (file_uuid,)).fetchone()
        assert db.execute("SELECT log_index FROM applied").fetchone() == (run["result"]["log_index"],)


def test_jobs_are_listed_on_the_command_line(cluster: Cluster) -> None:
    lines = cluster.filestore("job", "ls").stdout.decode().splitlines()
    assert [line.split()[0] for line in lines if line[:1].isalpha()][:2] == ["job", "compare"]
    jobs = json.loads(cluster.filestore("job", "ls", "--json").stdout)["jobs"]
    assert [job["job_name"] for job in jobs] == sorted(kind.name for kind in JOBS)


@pytest.mark.long
def test_jobs_are_listed_with_the_schedules_of_the_coordinators(own_cluster: Cluster) -> None:
    coordinators = own_cluster.coordinators
    own_cluster.kill(*coordinators)
    for member in coordinators:
        path = own_cluster.data(member) / "coordinator.json"
        config = json.loads(path.read_text()) | {"schedules": {"scrub": 7200.5, "rebalance": 0}}
        path.write_text(json.dumps(config))
    own_cluster.restart(*coordinators)
    own_cluster.leader()
    jobs = {job["job_name"]: job["schedule_s"] for job in own_cluster.get("/jobs").json["jobs"]}
    assert (jobs["scrub"], jobs["rebalance"], jobs["expire"]) == (7201, 0, 60)


def test_unknown_job_is_refused_in_one_line(cluster: Cluster) -> None:
    done = cluster.filestore("job", "run", "nonsense")
    assert done.returncode == 4
    assert b"not_found" in done.stderr
    assert done.stderr.count(b"\n") == 1


async def granted(cluster: Cluster, buckets: list[str]) -> int:
    """Permissions that end all at once; when they do."""
    for live_ms in GRANTS_LIVE_MS:
        with contextlib.suppress(InvalidRequest):  # the time of the first had passed when the last was made
            return await granted_until(cluster, buckets, now_ms() + live_ms)
    raise AssertionError("making the permissions takes longer than they live")


async def granted_until(cluster: Cluster, buckets: list[str], expires_at_ms: int) -> int:
    """Raises InvalidRequest when the time has passed before all were made."""
    caller = Caller("admin", 1, cluster.admin_token)
    async with as_node(cluster, cluster.nodes[0]) as client:

        async def grant(number: int) -> None:
            command = GrantPermission(
                caller=caller,
                target="bucket",
                target_id=buckets[number % BUCKETS],
                permission_id=f"p{number}",
                permission="read",
                principal_type="user",
                principal_id=f"u{number}",
                expires_at_ms=expires_at_ms,
            )
            await client.propose(command, PermissionRecord, timeout_s=SOON_S)

        await asyncio.gather(*(grant(number) for number in range(BUCKETS * GRANTS)))
    return expires_at_ms


@pytest.mark.long
async def test_run_outlives_the_leader_that_began_it_and_ends_once(own_cluster: Cluster) -> None:
    cluster = own_cluster
    buckets = [cluster.post("/buckets", {"name": f"b{n}"}).json["bucket_id"] for n in range(BUCKETS)]
    expires_at_ms = await granted(cluster, buckets)
    leader = cluster.leader()
    wait_until(lambda: now_ms() > expires_at_ms, what="the end of the permissions", timeout_s=SOON_S)
    begun = cluster.post("/jobs/expire")
    cluster.kill(leader)
    assert begun.status == 202, begun.body
    run = ended(cluster, begun.json["run_id"])
    assert run["status"] == "completed", run
    assert run["node_id"] != leader.id
    for bucket_id in buckets:
        assert cluster.get(f"/buckets/{bucket_id}/permissions").json["count"] == 0
    runs = cluster.get("/jobs/runs?job_name=expire").json["runs"]
    assert [each["run_id"] for each in runs] == [run["run_id"]]


def ended(cluster: Cluster, run_id: str) -> Any:
    """The run once it has ended, whatever the cluster says meanwhile."""
    found: list[Any] = []

    def has_ended() -> bool:
        answer = cluster.get(f"/jobs/runs/{run_id}")
        if answer.status == 200:
            found.append(answer.json)
        return bool(found and found[-1]["status"] != "running")

    wait_until(has_ended, what="the end of the run", timeout_s=SOON_S)
    return found[-1]


@pytest.mark.long
def test_drained_node_takes_nothing_new_and_a_removed_one_is_out(own_cluster: Cluster) -> None:
    cluster = own_cluster
    away = cluster.nodes[2]
    assert cluster.filestore("node", "remove", away.id).returncode == 5
    done = cluster.filestore("node", "drain", away.id)
    assert (done.returncode, done.stderr) == (0, b"")
    file_uuid = cluster.store(b"on the two that are left")
    assert shown(cluster) == {
        cluster.nodes[0].id: "healthy",
        cluster.nodes[1].id: "healthy",
        away.id: "draining",
    }
    done = cluster.filestore("node", "remove", away.id)
    assert done.returncode == 0, done.stderr.decode()
    assert set(shown(cluster)) == {cluster.nodes[0].id, cluster.nodes[1].id}
    assert cluster.get(f"/project-files/{file_uuid}").status == 200

    def is_out() -> bool:
        return cluster.get(f"/project-files/{file_uuid}", node=away).status == 503

    done = cluster.filestore("node", "drain", cluster.nodes[1].id)
    assert done.returncode == 0
    assert b"! 1 node takes new files, 2 are required: uploads are rejected." in done.stderr
    wait_until(is_out, what="the removed node knows nothing any more", timeout_s=SOON_S)


def shown(cluster: Cluster) -> dict[str, str]:
    """The nodes and their states, as the status of the cluster has them."""
    return {node["id"]: node["state"] for node in cluster.get("/cluster/status").json["nodes"]}
