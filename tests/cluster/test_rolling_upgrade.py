"""The promise of an upgrade: a cluster of the release before this one is rolled to it under load.

And back, as long as the rules are not raised; afterwards the older release is refused.
"""

import hashlib
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from ca.errors import Unavailable
from deploy.dev_cluster import Member
from deploy.processes import is_ready, stop_children, wait_until
from filestore_client.base.retry import DEADLINE_S
from metadata.model.rules import RULES
from tests.cluster.mixed_versions import Load, MixedCluster
from tests.cluster.packed import holders_of, packed_on, packs_of
from tests.cluster.previous_release import PreviousRelease, previous_release
from tests.cluster.test_coordinators import Guest, done

NAME = "localhost"
SETTLED_S = 3.0  # of load before and after
RAISED_S = 60.0
REFUSED_S = 30.0
COMPARED_S = 10.0  # of slices every 0.1 s, of some thirty tables
SAFE_S = 60.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def previous() -> PreviousRelease:
    return previous_release()


def machines(cluster: MixedCluster) -> list[tuple[Member, Member]]:
    """Each has a coordinator and a node."""
    return list(zip(cluster.coordinators, cluster.nodes, strict=True))


def problems(cluster: MixedCluster) -> list[str]:
    """As the first node has them, which is of this version."""
    answer = cluster.get("/cluster/status")
    return list(answer.json["problems"]) if answer.status == 200 else []


def exchange(cluster: MixedCluster, directory: Path) -> None:
    """What the command of either version puts, that of the other gets; both tell how the cluster is."""
    source = directory / f"{time.monotonic_ns()}.txt"
    source.write_bytes(source.name.encode() * 1000)
    for put in cluster.by_both_commands("put", str(source)):
        assert put.returncode == 0, put.stderr
        for got in cluster.by_both_commands("get", put.stdout.decode().split()[-1], "-o", "-"):
            assert (got.returncode, got.stdout) == (0, source.read_bytes()), got.stderr
    for told in cluster.by_both_commands("status", "--json"):
        assert json.loads(told.stdout)["healthy"] is True, told.stdout + told.stderr


def named(cluster: MixedCluster, node: Member) -> tuple[int, str]:
    """A stopped node is given the name of its machine in place of its address; how that ended."""
    done = cluster.filestore("node", "set-address", "--data", str(cluster.data(node)), "--address", NAME)
    return done.returncode, done.stderr.decode()


def what_is_new_waits(cluster: MixedCluster) -> None:
    """It is refused, with what to do, until the last is upgraded: an older leader would pass it over."""
    stored = cluster.store(b"keeps its name", "old.gns3p")
    for node in cluster.nodes[:2]:  # an older one knows nothing of it
        answer = cluster.request("PATCH", f"/project-files/{stored}", body={"filename": "new"}, node=node)
        assert (answer.status, answer.json["code"]) == (503, "unavailable"), answer.body
        assert "Upgrade members" in answer.json["details"]
    assert cluster.get(f"/project-files/{stored}").json["filename"] == "old.gns3p"
    for node in cluster.nodes:  # an older one lists the whole bucket, whatever folder is asked for
        removed = cluster.filestore("rm", "-r", "lab", FILESTORE_URL=node.url)
        assert removed.returncode == 4, removed.stdout + removed.stderr
        assert cluster.filestore("cat", "lab/old.gns3p", FILESTORE_URL=node.url).returncode == 4
    assert cluster.get(f"/files/{stored}").body == b"keeps its name"
    answer = cluster.post("/backups", {"filename": "f", "backup_type": "full", "path": "lab"})
    assert (answer.status, answer.json["code"]) == (503, "unavailable"), answer.body
    assert "Upgrade members" in answer.json["details"]
    newer, older = cluster.nodes[0], cluster.nodes[2]
    begun_s = time.monotonic()
    refused = cluster.filestore(
        *("put", "-", "--filename", "f", "--folder", "lab"),
        stdin=b"x",
        FILESTORE_URL=f"{newer.url} {older.url}",
    )
    assert refused.returncode == 6
    assert b"Upgrade members" in refused.stderr
    assert time.monotonic() - begun_s < DEADLINE_S, "it is tried again to no avail"
    assert cluster.filestore("ls", "lab", "--json").stdout == b""


def people_wait(cluster: MixedCluster) -> None:
    """What is new for people and their files needs all members; any leader makes tokens, for all nodes."""
    token, newer = cluster.user_token("rolled"), cluster.nodes[0]
    for node in cluster.nodes:
        assert cluster.get("/auth/whoami", token=token, node=node).status == 200
    for arguments in (
        ("group", "add", "rolled-lab", "rolled"),
        ("user", "invite", "rolled"),
        ("session", "end", "--all", "--user", "rolled"),
        ("sso", "set", "uni", "--issuer", "https://login.invalid", "--client-id", "f", "--allow-group", "g"),
        ("bucket", "set", "default", "--trash-days", "3"),
    ):
        done = cluster.filestore(*arguments, FILESTORE_URL=newer.url)
        assert (done.returncode, b"Upgrade" in done.stderr) == (6, True), done.stderr
    assert cluster.get("/auth/whoami", token=token).json["groups"] == []


def people_are_managed(cluster: MixedCluster) -> None:
    """Once the rules are raised."""
    before, token = cluster.user_token("rolled"), cluster.user_token("rolled")
    assert cluster.filestore("group", "add", "rolled-lab", "rolled").returncode == 0
    assert cluster.get("/auth/whoami", token=token).json["groups"] == ["rolled-lab"]
    assert cluster.filestore("session", "ls", "--user", "rolled", "--json").stdout.count(b"session_id") == 2
    assert cluster.filestore("session", "end", "--all", "--user", "rolled").returncode == 0
    for each in (before, token):
        assert cluster.get("/auth/whoami", token=each, stranger=True).status == 401


def wait_until_safe(cluster: MixedCluster) -> None:
    """Ask before each machine, as the runbook says."""
    check: list[subprocess.CompletedProcess[bytes]] = []

    def is_safe() -> bool:
        check.append(cluster.filestore("upgrade", "check", "--json"))
        return check[-1].returncode == 0

    try:
        wait_until(is_safe, what="it is safe", timeout_s=SAFE_S)
    except Unavailable as error:
        raise AssertionError(check[-1].stdout + check[-1].stderr) from error


def roll_there_and_back_and_there(cluster: MixedCluster, load: Load, directory: Path) -> None:
    first, second, last = machines(cluster)
    unsafe = cluster.filestore("upgrade", "check")
    assert (unsafe.returncode, b"No snapshot of the metadata" in unsafe.stdout) == (10, True), unsafe.stdout
    assert cluster.filestore("job", "run", "snapshot", "--wait").returncode == 0
    exchange(cluster, directory)
    for member in (*first, *second):
        cluster.roll(member)
    exchange(cluster, directory)
    what_is_new_waits(cluster)
    people_wait(cluster)
    print("two machines of three:", load.told(), flush=True)
    assert cluster.rules() == {RULES - 1}
    for member in (*first, *second):
        cluster.roll(member, to_previous=True)
    exchange(cluster, directory)
    time.sleep(COMPARED_S)
    assert not cluster.differing()
    print("and back:", load.told(), flush=True)
    for machine in (first, second, last[:1]):  # all of a machine at once, as the package does
        wait_until_safe(cluster)
        cluster.roll(*machine)
    older = f"Upgrade one of the older members: {last[1].id}."
    wait_until(
        lambda: older in cluster.filestore("upgrade", "check").stdout.decode(), what=older, timeout_s=SAFE_S
    )
    cluster.terminate(last[1])
    code, why = named(cluster, last[1])
    assert (code, "Upgrade members" in why) == (6, True), why
    assert cluster.rules() == {RULES - 1}  # the last node has not told that it knows the new ones
    assert not any(packs_of(cluster, node) for node in cluster.nodes)  # an older one would not find them
    cluster.start_as(last[1])
    wait_until(lambda: cluster.rules() == {RULES}, what="the rules are raised", timeout_s=RAISED_S)
    cluster.wait_healthy()
    exchange(cluster, directory)
    wait_until(lambda: is_packed(cluster), what="small files in packs", timeout_s=RAISED_S)
    assert cluster.filestore("put", "-", "--filename", "f", "--folder", "lab", stdin=b"x").returncode == 0
    for node in cluster.nodes:
        assert cluster.filestore("cat", "lab/f", FILESTORE_URL=node.url).stdout == b"x"
    people_are_managed(cluster)


def is_packed(cluster: MixedCluster) -> bool:
    """Whether small content that comes now is packed; what came before is no file less."""
    content = os.urandom(1000)
    cluster.store_everywhere(content)
    return holders_of(cluster, hashlib.sha256(content).hexdigest()) == cluster.nodes


def test_cluster_is_rolled_there_and_back_and_there_again_under_load(
    previous: PreviousRelease, tmp_path: Path
) -> None:
    with MixedCluster(tmp_path / "cluster", previous) as cluster:
        load = Load(cluster)
        with load.running():
            time.sleep(SETTLED_S)
            roll_there_and_back_and_there(cluster, load, tmp_path)
            time.sleep(SETTLED_S)
        print("all:", load.told())
        assert not cluster.differing()
        assert not load.faults, "\n".join(load.faults)
        load.check_contents()
        refuses_the_previous_release(cluster)
        takes_a_name(cluster, tmp_path, *next(iter(load.stored.items())))


@pytest.mark.parametrize("kill", [False, True], ids=["ended", "killed"])
def test_nodes_of_two_workers_are_rolled_under_load(
    previous: PreviousRelease, tmp_path: Path, *, kill: bool
) -> None:
    """Machine by machine, each as an operator ends it, or by SIGKILL in the middle of its roll."""
    with MixedCluster(tmp_path / "cluster", previous, node_options=("--workers", "2")) as cluster:
        load = Load(cluster)
        with load.running():
            time.sleep(SETTLED_S)
            assert cluster.filestore("job", "run", "snapshot", "--wait").returncode == 0
            for machine in machines(cluster):
                wait_until_safe(cluster)
                cluster.roll(*machine, kill=kill)
                print(f"with {machine[1].id}:", load.told(), flush=True)
            wait_until(lambda: cluster.rules() == {RULES}, what="the rules are raised", timeout_s=RAISED_S)
            time.sleep(SETTLED_S)
        assert not cluster.differing()
        assert not load.faults, "\n".join(load.faults)
        load.check_contents()


def takes_a_name(cluster: MixedCluster, directory: Path, file_uuid: str, sha256: str) -> None:
    """Once the rules are raised; others reach it by that name."""
    node, target = cluster.nodes[2], directory / "by-name"
    cluster.terminate(node)
    assert named(cluster, node)[0] == 0
    cluster.start_as(node)
    wait_until(
        lambda: is_ready(node.api_port, cluster.context, host=NAME), what="it is ready", timeout_s=RAISED_S
    )
    wait_until(lambda: not problems(cluster), what="all others reach it", timeout_s=RAISED_S)
    got = cluster.filestore("get", file_uuid, "--url", f"https://{NAME}:{node.api_port}", "-o", str(target))
    assert got.returncode == 0, got.stderr
    assert hashlib.sha256(target.read_bytes()).hexdigest() == sha256


def refuses_the_previous_release(cluster: MixedCluster) -> None:
    coordinator, node = cluster.coordinators[1], cluster.nodes[1]
    content = os.urandom(1000)
    cluster.store_everywhere(content)
    sha256 = hashlib.sha256(content).hexdigest()
    assert sha256 in packed_on(cluster, node)
    cluster.terminate(coordinator)
    cluster.start_as(coordinator, to_previous=True)
    wait_until(lambda: not cluster.runs(coordinator), what="it is refused", timeout_s=REFUSED_S)
    print(cluster.last_words(coordinator))
    assert f"gone on to rules {RULES}, this program knows those up to {RULES - 1}" in cluster.last_words(
        coordinator
    )
    cluster.start_as(coordinator)
    cluster.wait_healthy()
    cluster.terminate(node)
    cluster.start_as(node, to_previous=True)
    told = f"The node {node.id} is rejected, because its version is older than the cluster requires"
    wait_until(
        lambda: any(line.startswith(told) for line in problems(cluster)), what=told, timeout_s=REFUSED_S
    )
    assert node not in cluster.ready_nodes()
    cluster.terminate(node)
    cluster.start_as(node)
    cluster.wait_healthy()
    assert sha256 in packed_on(cluster, node)  # the older one has not touched the packs, and reported no loss


def test_snapshots_of_the_state_go_from_one_version_to_the_other_and_back(
    previous: PreviousRelease, tmp_path: Path
) -> None:
    """A group that begins with the older version, and whose log no newcomer can begin with."""
    old = (str(previous.program),)
    with MixedCluster(tmp_path / "cluster", previous) as cluster:
        file_uuid = cluster.create()["file_uuid"]
        data = str(cluster.data(cluster.coordinators[0]))
        kept = {name: str(tmp_path / name) for name in ("snapshot", "bundle")}
        for name, path in kept.items():
            assert cluster.by_previous("coordinator", name, "--data", data, "--output", path).returncode == 0
        cluster.kill(*cluster.coordinators)
        first, second, third = (Guest(cluster, name) for name in ("r1", "r2", "r3"))
        restored = cluster.by_previous(
            *("coordinator", "restore", "--snapshot", kept["snapshot"], "--bundle", kept["bundle"]),
            *("--data", str(first.data), "--id", first.id, "--address", first.address),
        )
        assert restored.returncode == 0, restored.stderr
        children = [first.start(old)]
        try:
            joins(cluster, first, second)
            children.append(second.start())
            votes(cluster, first, second)
            cluster.filestore(
                "coordinator", "transfer-leader", "--to", second.id, FILESTORE_URL=first.member.url
            )
            joins(cluster, second, third)
            children.append(third.start(old))
            votes(cluster, second, third)
            for guest in (first, second, third):
                answer = cluster.get(f"/project-files/{file_uuid}", node=guest.member)
                assert answer.json["filename"] == "lab.gns3p", (guest.id, answer.body)
            for guest in (second, third):
                assert "installed the snapshot" in guest.log.read_text()
            assert not any("differ" in guest.log.read_text() for guest in (first, second, third))
        finally:
            stop_children(children)


def joins(cluster: MixedCluster, leader: Guest, guest: Guest) -> None:
    """Its directory is made from a bundle of the one that leads."""
    bundle = str(cluster.directory / f"{guest.id}.bundle")
    done(cluster, "coordinator", "bundle", "--data", str(leader.data), "-o", bundle)
    place = ("--data", str(guest.data), "--id", guest.id, "--address", guest.address)
    done(cluster, "coordinator", "init", "--bundle", bundle, *place)


def votes(cluster: MixedCluster, leader: Guest, guest: Guest) -> None:
    """It is added and has caught up."""
    add = ("coordinator", "add", "--id", guest.id, "--address", guest.address)

    def is_added() -> bool:
        return cluster.filestore(*add, FILESTORE_URL=leader.member.url).returncode == 0

    wait_until(is_added, what=f"{guest.id} is added", timeout_s=SAFE_S)

    def is_voter() -> bool:
        answer = cluster.get("/cluster/status", node=leader.member)
        known = answer.json["coordinators"] if answer.status == 200 else []
        return (guest.id, "voter") in [(each["id"], each["membership"]) for each in known]

    wait_until(is_voter, what=f"{guest.id} votes", timeout_s=SAFE_S)
