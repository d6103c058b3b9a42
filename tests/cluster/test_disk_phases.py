"""Disks that are read-only, fail, are full or gone, in every phase of the work: nothing is lost or stuck.

The disk of one of four nodes goes wrong under it (`disk_shim.py`), in the middle of an upload, of its
completion, of downloads, of a repair and of a drain, and before a start. What was acknowledged is read back,
new files are taken, and the node comes back by itself when its disk works.
"""

import errno
import hashlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from node.packs.store import BLOB_BYTES_MAX
from tests.blobs_on_disk import change_byte_on, content_on
from tests.cluster.disk_shim import CHANGES, KINDS, DiskRules, disk_rules
from tests.cluster.harness import Answer, Cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

SOON_S = 60.0
HEALED_S = 120.0
PART = 3 << 20
SIZE_BYTES = 2 * PART + 1000
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
KIND_NAMES = sorted(KINDS)


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory, monkeypatch_module: pytest.MonkeyPatch) -> DiskRules:
    return disk_rules(tmp_path_factory.mktemp("shim"), monkeypatch_module)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, rules: DiskRules) -> Iterator[Cluster]:
    """Four nodes, three replicas; who is silent, or has a disk that fails, for three seconds is down."""
    options = ("--down-after", "3")
    directory = tmp_path_factory.mktemp("cluster")
    with Cluster(directory, node_count=4, coordinator_options=options) as started:
        try:
            yield started
        finally:
            rules.clear()


@pytest.fixture
def cluster(running: Cluster, rules: DiskRules) -> Iterator[Cluster]:
    """Every disk works before and after."""
    wait_healthy(running)
    yield running
    rules.clear()
    revive(running)
    wait_healthy(running)


def wait_healthy(cluster: Cluster) -> None:
    """What could not be used is tried again each minute."""
    cluster.wait_healthy(timeout_s=HEALED_S)


def revive(cluster: Cluster) -> None:
    """Start again what has ended."""
    for node in cluster.nodes:
        if not cluster.runs(node):
            cluster.restart(node)


def of(cluster: Cluster, node: Member) -> str:
    """What is in every path of a node's disk."""
    return f"{cluster.data(node)}/"


def seen(cluster: Cluster, node: Member, asked: Member) -> Any:
    """What the cluster's status says of a node."""
    status = cluster.get("/cluster/status", node=asked).json
    return next(each for each in status["nodes"] if each["id"] == node.id)


def until_state(cluster: Cluster, node: Member, asked: Member, *states: str) -> None:
    wait_until(
        lambda: seen(cluster, node, asked)["state"] in states,
        what=f"{node.id} {'or '.join(states)}",
        timeout_s=SOON_S,
    )


def until_stored(cluster: Cluster, asked: Member, path: str, content: bytes, **headers: str) -> None:
    """Send it whole, again and again, until it is taken."""

    def is_taken() -> bool:
        answer = cluster.request("PUT", path, node=asked, content=content, headers=headers)
        assert answer.status in (200, 423, 503, 507), answer.body
        return answer.status == 200

    wait_until(is_taken, what="an upload that is taken", timeout_s=SOON_S)


def created_at(
    cluster: Cluster, holder: Member, asked: Member, size_bytes: int = SIZE_BYTES
) -> tuple[str, str]:
    """A new file whose upload a node holds: its uuid, and the path of its upload."""
    while True:
        made = cluster.create(node=asked, size_bytes=size_bytes)
        if made["upload_url"].startswith(holder.url):
            return str(made["file_uuid"]), str(made["upload_url"]).removeprefix(holder.url)
        assert cluster.request("DELETE", f"/project-files/{made['file_uuid']}", node=asked).status == 200


def patch(cluster: Cluster, asked: Member, path: str, content: bytes, start: int, stop: int) -> Answer:
    headers = {**TUS, "Upload-Offset": str(start)}
    return cluster.request("PATCH", path, node=asked, content=content[start:stop], headers=headers)


def offset(cluster: Cluster, asked: Member, path: str) -> int:
    """Where an upload stands, asked until somebody knows."""
    found: list[int] = []

    def is_told() -> bool:
        answer = cluster.request("HEAD", path, node=asked, headers={"Tus-Resumable": "1.0.0"})
        if answer.status == 200:
            found.append(int(answer.headers["upload-offset"]))
        return bool(found)

    wait_until(is_told, what="an offset", timeout_s=SOON_S)
    return found[0]


def until_whole(cluster: Cluster, asked: Member, path: str, content: bytes, *, acknowledged: int = 0) -> None:
    """Go on with an upload, again and again, as a client does, until all of it is taken."""

    def is_whole() -> bool:
        at = offset(cluster, asked, path)
        assert at >= acknowledged
        answer = patch(cluster, asked, path, content, at, SIZE_BYTES)
        assert answer.status in (204, 409, 423, 503, 507), answer.body
        return answer.status == 204

    wait_until(is_whole, what="the end of the upload", timeout_s=SOON_S)


def read_back(cluster: Cluster, file_uuid: str, content: bytes, asked: list[Member]) -> None:
    for node in asked:
        answer = cluster.get(f"/files/{file_uuid}", node=node)
        assert (answer.status, answer.body == content) == (200, True), (node.id, answer.status)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_upload_goes_on_elsewhere_and_loses_no_acknowledged_byte(
    cluster: Cluster, rules: DiskRules, kind: str
) -> None:
    """The holder's disk goes wrong between two pieces; what was told is there stays there."""
    bad, asked = cluster.nodes[-1], cluster.nodes[0]
    content = os.urandom(SIZE_BYTES)
    file_uuid, path = created_at(cluster, bad, asked)
    assert patch(cluster, asked, path, content, 0, PART).status == 204
    with rules.failing(of(cluster, bad), *KINDS[kind]):
        until_whole(cluster, asked, path, content, acknowledged=PART)
        read_back(cluster, file_uuid, content, cluster.nodes[:-1])


@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("size_bytes", [1, 3000, BLOB_BYTES_MAX])
def test_small_content_is_taken_elsewhere(
    cluster: Cluster, rules: DiskRules, kind: str, size_bytes: int
) -> None:
    """By the first request that is answered, or the next: nobody is told of a fault of ours."""
    bad, asked = cluster.nodes[-1], cluster.nodes[0]
    content = os.urandom(size_bytes)
    uploads = [created_at(cluster, bad, asked, size_bytes) for _ in range(4)]
    with rules.failing(of(cluster, bad), *KINDS[kind]):
        for (file_uuid, path), through in zip(uploads, [bad, asked] * 2, strict=True):
            until_stored(cluster, through, path, content)
            read_back(cluster, file_uuid, content, cluster.nodes[:-1])


@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("sent_bytes", [0, PART])
def test_node_whose_disk_fails_helps_an_upload_whose_holder_is_down(
    cluster: Cluster, rules: DiskRules, kind: str, sent_bytes: int
) -> None:
    """It is asked to see who goes on, and is of the placement itself: others are."""
    bad, asked, holder = cluster.nodes[-1], cluster.nodes[0], cluster.nodes[1]
    content = os.urandom(SIZE_BYTES)
    uploads = [created_at(cluster, holder, asked) for _ in range(3)]  # of three nodes of four each
    for _, path in uploads:
        if sent_bytes:
            assert patch(cluster, asked, path, content, 0, sent_bytes).status == 204
    with cluster.down(holder), rules.failing(of(cluster, bad), *KINDS[kind]):
        for file_uuid, path in uploads:
            until_stored(cluster, bad, path, content)
            read_back(cluster, file_uuid, content, [asked])


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_completion_goes_through_where_other_disks_work(
    cluster: Cluster, rules: DiskRules, kind: str
) -> None:
    """All bytes but the last are durable on the bad node too; nothing of it can be put into its place."""
    bad, asked = cluster.nodes[-1], cluster.nodes[0]
    content = os.urandom(SIZE_BYTES)
    file_uuid, path = created_at(cluster, bad, asked)
    assert patch(cluster, asked, path, content, 0, SIZE_BYTES - 1).status == 204
    with rules.failing(of(cluster, bad), *KINDS[kind]):
        until_whole(cluster, asked, path, content)
        read_back(cluster, file_uuid, content, cluster.nodes[:-1])


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_downloads_are_right_at_every_node_or_refused(cluster: Cluster, rules: DiskRules, kind: str) -> None:
    bad, others = cluster.nodes[-1], cluster.nodes[:-1]
    contents = [os.urandom(PART) for _ in range(4)]
    files = {cluster.store(content): content for content in contents}
    with rules.failing(of(cluster, bad), *KINDS[kind]):
        for file_uuid, content in files.items():
            read_back(cluster, file_uuid, content, others)
            answer = cluster.get(f"/files/{file_uuid}", node=bad)
            assert answer.status in (200, 503)
            assert answer.status == 503 or answer.body == content


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_replicas_on_a_disk_that_fails_are_made_anew_and_those_on_a_full_one_are_not(
    cluster: Cluster, rules: DiskRules, kind: str
) -> None:
    bad, asked = cluster.nodes[-1], cluster.nodes[0]
    files = {cluster.store(content): content for content in [os.urandom(50_000) for _ in range(8)]}
    named = [hashlib.sha256(content).hexdigest() for content in files.values()]
    marks = ", ".join("?" * len(named))
    held = f"SELECT COUNT(*) FROM blob_replicas WHERE sha256 IN ({marks}) AND node_id <> '{bad.id}'"
    short = f"SELECT COUNT(*) FROM blobs WHERE sha256 IN ({marks}) AND missing > 0"
    with rules.failing(of(cluster, bad), *KINDS[kind]):
        shown = "full" if kind == "full" else "failed"
        wait_until(lambda: seen(cluster, bad, asked)["disk"] == shown, what="the news", timeout_s=SOON_S)
        if kind == "full":
            new = {cluster.store(content, node=asked): content for content in [os.urandom(1000)]}
            assert seen(cluster, bad, asked)["state"] == "healthy"
        else:
            until_state(cluster, bad, asked, "down")
            told = cluster.get("/cluster/status", node=asked).json["problems"]
            assert any("its replicas do not count" in line for line in told), told
            wait_until(
                lambda: (
                    cluster.logged(short, *named) == [(0,)]
                    and cluster.logged(held, *named) == [(3 * len(named),)]
                ),
                what="other replicas",
                timeout_s=HEALED_S,
            )
            new = {}
        for file_uuid, content in {**files, **new}.items():
            read_back(cluster, file_uuid, content, [asked])
    until_state(cluster, bad, asked, "healthy")
    for file_uuid, content in files.items():
        read_back(cluster, file_uuid, content, cluster.nodes)


@pytest.mark.parametrize(("size_bytes", "area"), [(BLOB_BYTES_MAX + 1, "blobs"), (50_000, "packs")])
def test_damage_on_a_read_only_disk_is_reported_and_made_anew(
    cluster: Cluster, rules: DiskRules, size_bytes: int, area: str
) -> None:
    """It may not be moved, and no note is taken of it; it is not served either."""
    bad, asked = cluster.nodes[-1], cluster.nodes[0]
    content = os.urandom(size_bytes)
    file_uuid = cluster.store(content)
    sha256 = hashlib.sha256(content).hexdigest()
    for node in (bad, asked):  # where both of them have one
        if not cluster.holds(node, sha256):
            pytest.skip("placed elsewhere")
    part = f"{of(cluster, bad)}{area}/"
    where = "SELECT node_id FROM blob_replicas WHERE sha256 = ?"
    rules.add(part, CHANGES, errno.EROFS)
    rules.add(f"{of(cluster, bad)}quarantine/", CHANGES, errno.EROFS)
    rules.add(f"{of(cluster, bad)}lost", CHANGES, errno.EROFS)
    change_byte_on(cluster.data(bad), sha256, 100)
    read_back(cluster, file_uuid, content, [bad])
    wait_until(lambda: (bad.id,) not in cluster.logged(where, sha256), what="the report", timeout_s=SOON_S)
    assert content_on(cluster.data(bad), sha256) not in (None, content)
    told = seen(cluster, bad, asked)
    assert told["poison_count"] >= 1
    assert any(line.startswith(f"damaged/{sha256}: ") for line in told["poison"])
    shown = cluster.filestore("status")
    assert shown.returncode == 10
    assert f"! The node {bad.id} skips what it cannot use:" in shown.stdout.decode()
    read_back(cluster, file_uuid, content, [bad])
    missing = "SELECT missing FROM blobs WHERE sha256 = ?"
    wait_until(lambda: cluster.logged(missing, sha256) == [(0,)], what="another", timeout_s=HEALED_S)
    rules.clear()

    def is_rotten() -> bool:
        return content_on(cluster.data(bad), sha256) not in (None, content)

    wait_until(lambda: not is_rotten(), what="quarantine", timeout_s=90)  # tried again each minute
    wait_until(lambda: not seen(cluster, bad, asked)["poison_count"], what="its end", timeout_s=SOON_S)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_drain_goes_through_though_another_disk_fails_and_comes_to_an_end_on_the_bad_one(
    cluster: Cluster, rules: DiskRules, kind: str
) -> None:
    """What a drain releases is elsewhere: nothing comes below the write quorum, wherever the disk fails."""
    bad, asked = cluster.nodes[-1], cluster.nodes[0]
    files = {cluster.store(content): content for content in [os.urandom(50_000) for _ in range(6)]}
    named = [hashlib.sha256(content).hexdigest() for content in files.values()]
    marks = ", ".join("?" * len(named))
    least = (
        "SELECT MIN(others) FROM (SELECT COUNT(*) AS others FROM blob_replicas"
        f" WHERE sha256 IN ({marks}) AND node_id <> '{bad.id}' AND doomed_at IS NULL GROUP BY sha256)"
    )
    with rules.failing(of(cluster, bad), *KINDS[kind]):
        assert cluster.post(f"/cluster/nodes/{bad.id}/drain", node=asked).status == 200
        wait_until(
            lambda: cluster.logged(least, *named) == [(3,)], what="all of it elsewhere", timeout_s=HEALED_S
        )
        for file_uuid, content in files.items():
            read_back(cluster, file_uuid, content, cluster.nodes[:-1])
    assert cluster.request("DELETE", f"/cluster/nodes/{bad.id}/drain", node=asked).status == 200
    until_state(cluster, bad, asked, "healthy")
    for file_uuid, content in files.items():
        read_back(cluster, file_uuid, content, cluster.nodes)


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_start_on_a_bad_disk_waits_or_ends_with_a_reason_and_comes_when_the_disk_works(
    cluster: Cluster, rules: DiskRules, kind: str
) -> None:
    bad, asked = cluster.nodes[-1], cluster.nodes[0]
    content = os.urandom(50_000)
    file_uuid = cluster.store(content)
    cluster.kill(bad)
    before = len(cluster.logs()[bad.id])
    if kind == "full":  # who opens it first cuts it, and so gives back what it writes anew
        rules.add(f"{of(cluster, bad)}packs/index.sqlite-shm", "W", 0)
    with rules.failing(of(cluster, bad), *KINDS[kind]):
        cluster.restart(bad)
        wait_until(lambda: len(cluster.logs()[bad.id]) > before, what="a word of it", timeout_s=SOON_S)
        read_back(cluster, file_uuid, content, cluster.nodes[:-1])
        until_stored_new(cluster, asked)
        if kind == "full":
            until_state(cluster, bad, asked, "healthy")
        else:
            until_state(cluster, bad, asked, "down")
            assert "Traceback" not in cluster.logs()[bad.id][before:]
            assert cluster.runs(bad), cluster.last_words(bad)
    until_state(cluster, bad, asked, "healthy")
    wait_until(lambda: bad in cluster.ready_nodes(), what=f"{bad.id} ready", timeout_s=SOON_S)
    read_back(cluster, file_uuid, content, cluster.nodes)


def until_stored_new(cluster: Cluster, asked: Member) -> None:
    """A new file is taken."""
    content = os.urandom(1000)
    made = cluster.create(node=asked, size_bytes=len(content))
    path = "/" + str(made["upload_url"]).split("/", 3)[3]
    until_stored(cluster, asked, path, content)
    read_back(cluster, str(made["file_uuid"]), content, [asked])
