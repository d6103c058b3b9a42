"""Commands while members of the cluster are away: what they wait for, and what they tell."""

import subprocess

import pytest

from deploy.processes import wait_until
from tests.cluster.command_output import objects_in
from tests.cluster.harness import FILESTORE, Cluster


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ("token", "join"),
        ("node", "drain", "node-1"),
        ("node", "undrain", "node-1"),
        ("user", "set", "nina", "--create", "--group", "lab"),
    ],
    ids=" ".join,
)
def test_change_waits_for_coordinators_that_are_coming_back(
    mended: Cluster, arguments: tuple[str, ...]
) -> None:
    """Those that may be carried out twice are asked for again, whatever became of the first request."""
    cluster = mended
    away = cluster.coordinators[1:]
    cluster.kill(*away)
    wait_until(lambda: cluster.get("/project-files").status == 503, what="an old view", timeout_s=30)
    with subprocess.Popen(
        [FILESTORE, *arguments], env=cluster.command_environment(), stdout=subprocess.PIPE
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        cluster.restart(*away)
        told, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    if arguments[0] == "token":
        cluster.remember(told.decode().strip())
    cluster.leader()


@pytest.mark.long
def test_member_that_does_not_answer_is_named_and_the_others_are_shown(mended: Cluster) -> None:
    cluster, away = mended, mended.nodes[2]
    cluster.remember(cluster.post("/cluster/join-tokens", {}).json["token"])
    cluster.kill(away)
    done = cluster.filestore("audit", "--json", "--deadline", "1")
    assert done.returncode == 10
    assert "create_join_token" in [each["action"] for each in objects_in(done.stdout.decode())]
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"filestore: {away.id} does not answer: unavailable: ")
    cluster.restart(away)
    cluster.wait_healthy()
