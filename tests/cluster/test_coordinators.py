"""The group of coordinators changes while the cluster serves: add, remove, hand over, rebuild, restore."""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ca.errors import Forbidden, Unauthorized
from coordinator.member.snapshot_fetch import chunk_of
from deploy.dev_cluster import Member
from deploy.processes import OURS, Child, free_ports, start_child, stop_children, wait_until
from metadata.model.records import CoordinatorRecord, HashReport
from metadata.protocol.commands import ReportHash
from metadata.rpc.roster import read_roster
from tests.cluster.harness import Cluster, run_filestore
from tests.cluster.test_members import as_node, forged

pytestmark = pytest.mark.long  # run by `make long`

SOON_S = 30.0
RETRY_S = 5.0  # what a client that retries is promised
WRITERS = 4


@pytest.fixture
def small_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three coordinators, and one node to ask."""
    with Cluster(tmp_path / "cluster", node_count=1, replicas=1, write_quorum=1) as started:
        yield started


class Guest:
    """A coordinator that is not of the first three."""

    def __init__(self, cluster: Cluster, coordinator_id: str) -> None:
        self.id = coordinator_id
        self.data = cluster.directory / coordinator_id
        self.peer_port, self.api_port = free_ports(2)
        self.address = f"127.0.0.1:{self.peer_port}:{self.api_port}"
        self.log = cluster.directory / "logs" / f"{coordinator_id}.log"
        self.member = Member(self.id, "coordinator", self.api_port, self.peer_port)

    def start(self, program: Sequence[str] = OURS) -> Child:
        """`program`: the command of another version."""
        arguments = ["coordinator", "run", "--data", str(self.data)]
        return start_child(self.id, arguments, self.log, program=program)


@contextmanager
def running(guest: Guest) -> Iterator[Child]:
    child = guest.start()
    try:
        yield child
    finally:
        stop_children([child])


def done(cluster: Cluster, *arguments: str) -> str:
    """A command that must succeed; what it printed."""
    finished = cluster.filestore(*arguments)
    assert finished.returncode == 0, finished.stderr.decode()
    return finished.stdout.decode()


def prepared(cluster: Cluster, coordinator_id: str) -> Guest:
    """The directory of another coordinator, made from a bundle of the present."""
    guest = Guest(cluster, coordinator_id)
    bundle = cluster.directory / f"{coordinator_id}.bundle"
    source = str(cluster.data(cluster.coordinators[0]))
    done(cluster, "coordinator", "bundle", "--data", source, "--output", str(bundle))
    assert bundle.stat().st_mode & 0o777 == 0o600
    where = ("--data", str(guest.data), "--id", guest.id, "--address", guest.address)
    done(cluster, "coordinator", "init", "--bundle", str(bundle), *where)
    return guest


def states(cluster: Cluster) -> dict[str, Any]:
    """The coordinators as the cluster's status has them, by id."""
    answer = cluster.get("/cluster/status")
    return {each["id"]: each for each in answer.json["coordinators"]} if answer.status == 200 else {}


def wait_voter(cluster: Cluster, coordinator_id: str) -> None:
    def votes() -> bool:
        return bool(states(cluster).get(coordinator_id, {}).get("membership") == "voter")

    wait_until(votes, what=f"{coordinator_id} votes", timeout_s=SOON_S)


def add(cluster: Cluster, guest: Guest) -> None:
    done(cluster, "coordinator", "add", "--id", guest.id, "--address", guest.address)


def test_added_coordinator_votes_leads_and_ends_when_it_is_removed(small_cluster: Cluster) -> None:
    cluster = small_cluster
    file_uuid = cluster.create()["file_uuid"]
    guest = prepared(cluster, "c4")
    with running(guest) as child:
        add(cluster, guest)
        wait_voter(cluster, guest.id)
        assert cluster.get(f"/project-files/{file_uuid}", node=guest.member).status == 200
        known = read_roster(cluster.data(cluster.nodes[0]) / "coordinators.json")
        assert guest.id in {record.coordinator_id for record in known}
        assert "c4 is the leader." in done(cluster, "coordinator", "transfer-leader", "--to", guest.id)
        cluster.create()
        taken = json.loads(done(cluster, "job", "run", "snapshot", "--wait", "--json"))["result"]
        assert taken["coordinator"] == guest.id
        # Of four voters three are a majority, one of which is the new one.
        cluster.kill(cluster.coordinators[0])
        cluster.create()
        cluster.restart(cluster.coordinators[0])
        wait_until(
            lambda: states(cluster)[cluster.coordinators[0].id].get("active", False),
            what="it is back",
            timeout_s=SOON_S,
        )
        assert cluster.request("DELETE", f"/cluster/coordinators/{guest.id}").status == 200
        assert child.process.wait(SOON_S) == 0
    assert "removed from the cluster" in guest.log.read_text()
    cluster.create()
    assert guest.id not in states(cluster)
    assert f"{guest.id} (removed)" in done(cluster, "snapshot", "ls")
    unreadable = cluster.get(f"/cluster/snapshots/{taken['file'].removesuffix('.sqlite')}/files")
    assert (unreadable.status, unreadable.json["code"]) == (409, "conflict")
    again = cluster.filestore("coordinator", "add", "--id", guest.id, "--address", guest.address)
    assert (again.returncode, b"conflict" in again.stderr) == (5, True)


def test_removed_coordinator_that_was_away_is_told_when_it_comes_back(small_cluster: Cluster) -> None:
    cluster = small_cluster
    away = next(member for member in cluster.coordinators if member != cluster.leader())
    cluster.kill(away)
    done(cluster, "coordinator", "remove", away.id)
    done(cluster, "coordinator", "remove", away.id)  # the answer to the first may have been lost
    log = cluster.directory / "logs" / "removed.log"
    child = start_child("removed", ["coordinator", "run", "--data", str(cluster.data(away))], log)
    try:
        assert child.process.wait(SOON_S) == 0
    finally:
        stop_children([child])


def test_coordinator_is_not_removed_when_those_left_are_no_majority(small_cluster: Cluster) -> None:
    cluster = small_cluster
    leader = cluster.leader()
    dead, living = (member for member in cluster.coordinators if member != leader)
    cluster.kill(dead)
    wait_until(lambda: not states(cluster)[dead.id]["active"], what="it is missed", timeout_s=SOON_S)
    for member in (living, leader):
        answer = cluster.request("DELETE", f"/cluster/coordinators/{member.id}")
        assert (answer.status, answer.json["code"]) == (409, "conflict")
    assert set(states(cluster)) == {member.id for member in cluster.coordinators}


def test_lead_is_handed_to_the_one_that_was_named(small_cluster: Cluster) -> None:
    cluster = small_cluster
    for member in cluster.coordinators:
        answer = cluster.post("/cluster/leader", {"id": member.id})
        assert (answer.status, answer.json) == (200, {"leader": member.id})
    assert cluster.post("/cluster/leader").json["leader"] != cluster.coordinators[-1].id
    audit = (cluster.data(cluster.nodes[0]) / "audit.log").read_text()
    assert audit.count('"transfer_leader"') == len(cluster.coordinators) + 1


def test_leader_is_removed_and_another_leads(small_cluster: Cluster) -> None:
    cluster = small_cluster
    leader = cluster.leader()
    process = cluster.pid(leader)
    assert cluster.request("DELETE", f"/cluster/coordinators/{leader.id}").status == 200
    wait_until(lambda: not runs(process), what="the removed one has ended", timeout_s=SOON_S)
    assert set(states(cluster)) == {member.id for member in cluster.coordinators if member != leader}
    cluster.create()


def runs(pid: int) -> bool:
    """Whether a child of this process has not ended; one that has stays a zombie until it is waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_changes_of_the_group_that_make_no_sense_are_refused(cluster: Cluster) -> None:
    known = cluster.coordinators[0]
    taken = {"address": "127.0.0.1", "peer_port": known.peer_port, "api_port": 2}
    assert cluster.post("/cluster/coordinators", {"id": "c9", **taken}).status == 409
    assert cluster.post("/cluster/coordinators", {"id": known.id, **taken}).status == 409
    for name in ("c9", "C%209", "%00"):
        assert cluster.request("DELETE", f"/cluster/coordinators/{name}").status == 404
    assert cluster.post("/cluster/leader", {"id": "c9"}).status == 404
    assert cluster.post("/cluster/leader", {"id": "C 9"}).status == 400


def test_only_admins_change_the_group(cluster: Cluster) -> None:
    body = {"id": "c9", "address": "127.0.0.1", "peer_port": 1, "api_port": 2}
    for token, status in ((cluster.user_token("mallory"), 403), (None, 401)):
        assert cluster.post("/cluster/coordinators", body, token=token).status == status
        assert cluster.post("/cluster/leader", {}, token=token).status == status
        path = f"/cluster/coordinators/{cluster.coordinators[0].id}"
        assert cluster.request("DELETE", path, token=token).status == status
    assert "c9" not in states(cluster)


async def test_node_gets_no_snapshot_and_changes_nothing_in_the_group(cluster: Cluster) -> None:
    stranger = CoordinatorRecord(coordinator_id="c9", address="127.0.0.1", peer_port=1, api_port=2)
    report = ReportHash(coordinator_id=cluster.coordinators[0].id, log_index=1, digest="0" * 64)
    async with as_node(cluster, cluster.nodes[0]) as client:
        with pytest.raises(Forbidden):
            await chunk_of(client, cluster.coordinators[0].id, 1, 1, 0)
        with pytest.raises(Forbidden):
            await client.propose(report, HashReport)
        for caller in forged():
            with pytest.raises(Unauthorized):
                await client.add_coordinator(caller, stranger)
            with pytest.raises(Unauthorized):
                await client.remove_coordinator(caller, cluster.coordinators[0].id)
            with pytest.raises(Unauthorized):
                await client.transfer_leader(caller, "")


class Writers:
    """Clients that create files for as long as they are let, each request tried again for RETRY_S."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(WRITERS)]
        self.succeeded = 0
        self.slowest_s = 0.0
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * SOON_S)

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            started_at = time.monotonic()
            failure = self._create(f"{number}-{started_at}", started_at)
            with self._lock:
                self.succeeded += not failure
                self.slowest_s = max(self.slowest_s, time.monotonic() - started_at)
                self.failures += [failure] if failure else []

    def _create(self, name: str, started_at: float) -> str:
        """ "" once the file is there, else what the last attempt within RETRY_S came to."""
        failure = "not tried"
        while time.monotonic() - started_at < RETRY_S:
            answer = self._cluster.post("/project-files", {"filename": name, "project_id": "rolling"})
            if answer.status == 201:
                return ""
            failure = answer.body.decode()
        return failure


def test_rolling_restart_loses_no_request_that_retries(small_cluster: Cluster) -> None:
    cluster = small_cluster
    with Writers(cluster) as writers:
        for _ in range(2):
            for member in cluster.coordinators:
                cluster.terminate(member)
                cluster.restart(member)
                cluster.wait_healthy()
    print(f"{writers.succeeded} creates during six restarts, the slowest took {writers.slowest_s:.2f} s")
    assert not writers.failures
    listed = cluster.get("/project-files?project_id=rolling&limit=1000").json["count"]
    assert listed == min(writers.succeeded, 1000)


def restart_with_digests(cluster: Cluster, every_s: float) -> None:
    """All coordinators anew, comparing their states this often."""
    cluster.terminate(*cluster.coordinators)
    for member in cluster.coordinators:
        path = cluster.data(member) / "coordinator.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"digest_s": every_s}))
    cluster.restart(*cluster.coordinators)
    cluster.wait_healthy()


def damage(data: Path) -> None:
    """One byte of one row of the database of a coordinator that does not run."""
    with closing(sqlite3.connect(data / "state.sqlite")) as db:
        changed = db.execute("UPDATE files SET filename = 'lab.gnsXp' WHERE filename = 'lab.gns3p'")
        assert changed.rowcount == 1
        db.commit()


def test_coordinator_whose_state_differs_stops_itself_and_is_rebuilt(small_cluster: Cluster) -> None:
    cluster = small_cluster
    file_uuid = cluster.create()["file_uuid"]
    restart_with_digests(cluster, 0.1)
    odd = next(member for member in cluster.coordinators if member != cluster.leader())
    data = cluster.data(odd)
    cluster.terminate(odd)
    damage(data)
    guest = Guest(cluster, "c4")
    guest.data = data
    with running(guest) as child:
        assert child.process.wait(SOON_S) == 1
    assert "differs from that of the majority" in guest.log.read_text()
    assert (data / "diverged").exists()
    with running(guest) as child:
        assert child.process.wait(SOON_S) == 1  # it does not start again
    cluster.create()
    others = [member.id for member in cluster.coordinators if member != odd]
    wait_until(
        lambda: all(f"wrong: {odd.id}" in cluster.logs()[name] for name in others),
        what="both others name the odd one",
        timeout_s=SOON_S,
    )
    own_name = cluster.filestore("coordinator", "rebuild", "--data", str(data), "--id", odd.id)
    assert (own_name.returncode, b"it needs a new name" in own_name.stderr) == (1, True)
    output = done(cluster, "coordinator", "rebuild", "--data", str(data), "--id", guest.id)
    assert "Set aside" in output
    done(cluster, "coordinator", "rebuild", "--data", str(data), "--id", guest.id)  # as after an interruption
    with running(guest):
        wait_voter(cluster, guest.id)
        answer = cluster.get(
            f"/project-files/{file_uuid}", node=Member(guest.id, "coordinator", odd.api_port, 0)
        )
        assert answer.json["filename"] == "lab.gns3p"
        assert odd.id not in states(cluster)


def test_snapshot_makes_a_new_cluster_to_which_others_are_added(small_cluster: Cluster) -> None:
    cluster = small_cluster
    cluster.user_token("alice")
    file_uuid = cluster.create()["file_uuid"]
    data = str(cluster.data(cluster.coordinators[0]))
    snapshot, bundle = cluster.directory / "kept.snapshot", cluster.directory / "kept.bundle"
    done(cluster, "coordinator", "snapshot", "--data", data, "--output", str(snapshot))
    done(cluster, "coordinator", "bundle", "--data", data, "--output", str(bundle))
    assert snapshot.stat().st_mode & 0o777 == 0o600
    stolen = [revoked_twice(cluster, "alice"), cluster.user_token("newcomer")]
    later = cluster.create()["file_uuid"]
    cluster.kill(*cluster.coordinators)
    first = Guest(cluster, "r1")
    kept = ("--snapshot", str(snapshot), "--bundle", str(bundle))
    where = ("--data", str(first.data), "--id", first.id, "--address", first.address)
    done(cluster, "coordinator", "restore", *kept, *where)
    environment = cluster.command_environment(
        FILESTORE_URL=first.member.url, FILESTORE_TOKEN_FILE=str(first.data / "admin.token")
    )
    cluster.remember((first.data / "admin.token").read_text().strip())
    second = Guest(cluster, "r2")
    where = ("--data", str(second.data), "--id", second.id, "--address", second.address)
    done(
        cluster,
        "coordinator",
        "bundle",
        "--data",
        str(first.data),
        "-o",
        str(cluster.directory / "new.bundle"),
    )
    done(cluster, "coordinator", "init", "--bundle", str(cluster.directory / "new.bundle"), *where)
    with running(first), running(second):
        added = run_filestore(
            ["coordinator", "add", "--id", second.id, "--address", second.address], environment
        )
        assert added.returncode == 0, added.stderr.decode()

        def both_vote() -> bool:
            shown = run_filestore(["coordinator", "status", "--json"], environment)
            found = json.loads(shown.stdout or "{}").get("coordinators", [])
            return {(each["id"], each["membership"]) for each in found} == {("r1", "voter"), ("r2", "voter")}

        wait_until(both_vote, what="both vote", timeout_s=SOON_S)
        for guest in (first, second):
            assert cluster.get(f"/project-files/{file_uuid}", node=guest.member).status == 200
            assert cluster.get(f"/project-files/{later}", node=guest.member).status == 404
        assert cluster.post("/auth/revoke", {"user_id": "alice"}, node=first.member).status == 200
        assert cluster.request("PUT", "/auth/users/newcomer", body={}, node=first.member).status == 200
        for token in stolen:
            assert cluster.get("/auth/whoami", node=first.member, token=token).status == 401
        node = cluster.nodes[0]
        cluster.terminate(node)
        data = str(cluster.data(node))
        found = done(cluster, "node", "reconnect", "--data", data, "--coordinator", second.member.url)
        assert "r1, r2" in found
        cluster.restart(node)
        wait_until(lambda: answers(cluster, node), what="the node is back", timeout_s=SOON_S)
        assert cluster.create()["status"] == "pending"
    assert "installed the snapshot" in second.log.read_text()


def revoked_twice(cluster: Cluster, user_id: str) -> str:
    """A token between the two revocations: for its sake there was a second one."""
    assert cluster.post("/auth/revoke", {"user_id": user_id}).status == 200
    token = cluster.user_token(user_id)
    assert cluster.post("/auth/revoke", {"user_id": user_id}).status == 200
    return token


def answers(cluster: Cluster, node: Member) -> bool:
    """Whether a node can serve."""
    try:
        return cluster.get("/readyz", node=node, token=None).status == 200
    except OSError:
        return False
