"""Content that only nodes hold which are down: everybody is told, and nobody loses it by a wrong step."""

from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster
from tests.cluster.test_metrics import families, value

CONTENT = b"only on nodes that are down\n" * 100_000
SOON_S = 60.0


@pytest.mark.long
def test_content_on_nodes_that_are_down_is_told_and_given_up_only_by_saying_so(tmp_path: Path) -> None:
    options = ("--down-after", "3")
    with Cluster(tmp_path / "cluster", replicas=2, coordinator_options=options) as cluster:
        file_uuid = cluster.store(CONTENT)
        sha256 = cluster.get(f"/project-files/{file_uuid}").json["blob_sha256"]
        holders = [node for node in cluster.nodes if cluster.replica(node, sha256).exists()]
        (asked,) = (node for node in cluster.nodes if node not in holders)
        cluster.kill(*holders)

        def absent_blobs() -> int:
            return int(cluster.get("/cluster/status", node=asked).json["replicas"]["absent"])

        def removed(node: Member, *options: str) -> tuple[int, str]:
            done = cluster.filestore("node", "remove", node.id, "--force", *options, FILESTORE_URL=asked.url)
            return done.returncode, done.stderr.decode()

        wait_until(lambda: absent_blobs() == 1, what="two nodes that are down", timeout_s=SOON_S)
        status = cluster.get("/cluster/status", node=asked).json
        told = "1 blob is only on nodes that are down or have not compared their disks since: bring one back."
        assert told in status["problems"]
        assert not [problem for problem in status["problems"] if "repair creates them" in problem]
        (leader,) = (member for member in cluster.coordinators if member.id == status["leader"])
        found = families(cluster, leader)
        assert [value(found, f"filestore_blobs_{name}") for name in ("lost", "on_last_replica")] == [1, 0]
        assert cluster.get(f"/files/{file_uuid}", node=asked).status == 503
        for node in holders:
            code, words = removed(node)
            assert code == 5
            assert f"At least 1 blobs on {node.id} are on no other live node" in words

        back, away = holders
        run = ("job", "run", "compare", "--node-id", away.id, "--wait")
        done = cluster.filestore(*run, FILESTORE_URL=asked.url)
        assert (done.returncode, b"is down" in done.stdout + done.stderr) == (1, True)
        assert removed(away, "--give-up") == (0, "")
        assert removed(back)[0] == 5  # now it is the last
        cluster.restart(back)
        wait_until(lambda: absent_blobs() == 0, what="the other one again", timeout_s=SOON_S)
        wait_until(
            lambda: cluster.get(f"/files/{file_uuid}", node=asked).body == CONTENT,
            what="its content",
            timeout_s=SOON_S,
        )


@pytest.mark.long
def test_last_copy_and_absent_content_are_told_by_the_command_as_by_the_metrics(tmp_path: Path) -> None:
    options = ("--down-after", "3")
    with Cluster(tmp_path / "cluster", node_count=2, replicas=2, coordinator_options=options) as cluster:
        cluster.store(CONTENT)
        first, second = cluster.nodes

        def shown() -> str:
            return cluster.filestore("status", FILESTORE_URL=cluster.coordinators[0].url).stdout.decode()

        def told() -> tuple[float, float]:
            found = families(cluster, cluster.coordinators[0])
            last, lost = (value(found, f"filestore_blobs_{name}") for name in ("on_last_replica", "lost"))
            return last, lost

        assert "healthy, 1 file, 1 blob, " in shown()
        cluster.kill(second)
        wait_until(lambda: told() == (1, 0), what="a node that is down", timeout_s=SOON_S)
        hope = "do not stop that node; bring another back or add one"
        assert f"! 1 blob is on only one live node: {hope}." in shown()
        assert "replicas: short 1 lack 1, last 1\n" in shown()
        done = cluster.filestore("node", "remove", second.id, "--force", FILESTORE_URL=first.url)
        assert done.returncode == 0
        assert done.stderr == b"! 1 blob is on only one live node. Do not stop it; add a node.\n"
        cluster.kill(first)
        wait_until(lambda: told() == (0, 1), what="two nodes that are down", timeout_s=SOON_S)
        assert "replicas: short 1 lack 2, absent 1\n" in shown()


@pytest.mark.long
def test_only_holder_is_told_as_such_before_it_is_down(tmp_path: Path) -> None:
    """It may be down when the log decides: the guard does not rely on what the log would say now."""
    with Cluster(tmp_path / "cluster", replicas=1, write_quorum=1) as cluster:
        file_uuid = cluster.store(CONTENT)
        sha256 = cluster.get(f"/project-files/{file_uuid}").json["blob_sha256"]
        (holder,) = (node for node in cluster.nodes if cluster.replica(node, sha256).exists())
        done = cluster.filestore("node", "remove", holder.id, "--force")
        assert done.returncode == 5
        assert b"is not down and has content that no other node has" in done.stderr
