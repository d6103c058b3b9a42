"""What is promised when processes die by SIGKILL: nothing acknowledged is lost, nothing happens twice."""

import collections
import http.client
import itertools
import os
import threading
import time

import pytest

from deploy.dev_cluster import Member
from tests.cluster.harness import Answer, Cluster

CREATES = 200
CLIENTS = 8
PAUSE_S_MAX = 10.0  # lenient: elections take well under 3 s on an idle machine, tests share theirs
CREATES_TIMEOUT_S = 60.0


class Creators:
    """Clients that create files until enough were acknowledged. A refused or lost one is not tried again."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.acknowledged: dict[str, str] = {}
        self.moments: list[float] = []
        self.reached = {count: threading.Event() for count in (CREATES // 4, CREATES)}

    def run(self, node: Member) -> None:
        give_up_at = time.monotonic() + CREATES_TIMEOUT_S
        while not self.reached[CREATES].is_set() and time.monotonic() < give_up_at:
            name = f"lab-{next(self._numbers)}.gns3p"
            answer = self._attempt(name, node)
            if answer is not None and answer.status == 201:
                self._note(name, answer.json["file_uuid"])

    def _attempt(self, name: str, node: Member) -> Answer | None:
        try:
            return self._cluster.post("/project-files", {"filename": name, "project_id": "kill"}, node=node)
        except (OSError, http.client.HTTPException):
            return None

    def _note(self, name: str, file_uuid: str) -> None:
        with self._lock:
            self.acknowledged[name] = file_uuid
            self.moments.append(time.monotonic())
            for count, event in self.reached.items():
                if len(self.acknowledged) >= count:
                    event.set()


def test_death_of_the_leader_loses_no_acknowledged_create_and_makes_none_twice(
    mended: Cluster,
) -> None:
    creators = Creators(mended)
    nodes = itertools.cycle(mended.nodes)
    threads = [threading.Thread(target=creators.run, args=(next(nodes),)) for _ in range(CLIENTS)]
    leader = mended.leader()
    for thread in threads:
        thread.start()
    assert creators.reached[CREATES // 4].wait(CREATES_TIMEOUT_S)
    killed_at = time.monotonic()
    mended.kill(leader)
    for thread in threads:
        thread.join(CREATES_TIMEOUT_S + 30)
    assert creators.reached[CREATES].is_set(), f"only {len(creators.acknowledged)} creates were acknowledged"
    resumed_after_s = longest_pause_s(creators.moments, killed_at)
    print(f"writes paused for {resumed_after_s:.2f} s when the leader was killed")
    stored = mended.get("/project-files?project_id=kill").json["project_files"]
    counts = collections.Counter(record["filename"] for record in stored)
    assert max(counts.values()) == 1
    found = {record["filename"]: record["file_uuid"] for record in stored}
    missing = {name for name, file_uuid in creators.acknowledged.items() if found.get(name) != file_uuid}
    assert not missing
    assert resumed_after_s < PAUSE_S_MAX
    mended.restart(leader)
    mended.wait_healthy()


def longest_pause_s(moments: list[float], killed_at: float) -> float:
    """Between two acknowledgements that follow each other, from just before the kill on."""
    after = [killed_at, *sorted(moment for moment in moments if moment > killed_at)]
    return max(later - earlier for earlier, later in itertools.pairwise(after))


def test_death_of_a_node_leaves_every_file_readable_from_the_others(mended: Cluster) -> None:
    contents = {}
    for number in range(5):
        content = os.urandom(300_000 + number)
        contents[mended.store(content, f"{number}.gns3p")] = content
    for victim in mended.nodes:
        mended.kill(victim)
        for node in mended.nodes:
            if node == victim:
                continue
            for file_uuid, content in contents.items():
                answer = mended.get(f"/files/{file_uuid}", node=node)
                assert (answer.status, answer.body == content) == (200, True), (victim.id, node.id)
        mended.restart(victim)
        mended.wait_healthy()


def test_death_of_everything_loses_nothing_acknowledged(mended: Cluster) -> None:
    contents = {}
    for number in range(5):
        content = os.urandom(200_000 + number)
        contents[mended.store(content, f"{number}.gns3p")] = content
    created = mended.create("half.gns3p", size_bytes=2_000_000)
    half = os.urandom(2_000_000)
    piece = {"Content-Range": "bytes 0-999999/2000000"}
    answer = mended.request("PUT", created["upload_url"], content=half[:1_000_000], headers=piece)
    assert (answer.status, answer.json) == (202, {"offset": 1_000_000})
    before = mended.get("/project-files").json
    mended.kill(*mended.members)
    mended.restart(*mended.members)
    mended.wait_healthy()
    assert mended.get("/project-files").json == before
    for file_uuid, content in contents.items():
        for node in mended.nodes:
            assert mended.get(f"/files/{file_uuid}", node=node).body == content
    assert mended.get(f"/files/{created['file_uuid']}/status").json == {"offset": 1_000_000}
    piece = {"Content-Range": "bytes 1000000-1999999/2000000"}
    answer = mended.request("PUT", created["upload_url"], content=half[1_000_000:], headers=piece)
    assert answer.status == 200, answer.body
    assert mended.get(f"/files/{created['file_uuid']}").body == half


@pytest.mark.long
def test_completion_waits_for_the_write_quorum(mended: Cluster) -> None:
    cluster = mended
    created = cluster.create(size_bytes=4)
    url = created["upload_url"]
    others = [node for node in cluster.nodes if not url.startswith(node.url)]
    cluster.kill(*others)
    refused = cluster.request("PUT", url, content=b"abcd")
    assert (refused.status, refused.headers["retry-after"]) == (503, "2")
    head = cluster.request("HEAD", url)
    assert head.headers["upload-offset"] == "0"  # what would survive the loss of this node
    cluster.restart(others[0])
    headers = {"Content-Range": "bytes */4"}
    answer = cluster.request("PUT", url, content=b"", headers=headers)
    while answer.status == 503:  # bounded by the test's own deadline
        answer = cluster.request("PUT", url, content=b"", headers=headers)
    assert (answer.status, answer.json["status"]) == (200, "available")
    cluster.restart(others[1])
    cluster.wait_healthy()


def test_sigterm_ends_a_node_with_code_0(mended: Cluster) -> None:
    cluster = mended
    file_uuid = cluster.store(b"abcd")
    node = cluster.nodes[0]
    process = cluster._development.children[node.id].process
    cluster.terminate(node)
    assert process.returncode == 0
    assert cluster.get(f"/files/{file_uuid}", node=cluster.nodes[1]).body == b"abcd"
    cluster.restart(node)
    cluster.wait_healthy()
