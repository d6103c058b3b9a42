"""Another key signs user tokens: every process takes its tokens, and those of the one before no longer."""

import time

import pytest

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.cluster.harness import Cluster

pytestmark = pytest.mark.long  # run by `make long`

GRACE_S = 12
SOON_S = 10.0


def key_ids(cluster: Cluster, member: Member) -> set[str]:
    return {key["kid"] for key in cluster.request("GET", f"{member.url}/.well-known/jwks.json").json["keys"]}


def answers(cluster: Cluster, token: str) -> set[int]:
    """Of every process that verifies tokens, to who holds this one."""
    paths = [f"{member.url}/api/v1/auth/whoami" for member in cluster.members]
    return {cluster.request("GET", path, token=token, stranger=True).status for path in paths}


def wait_for_keys(cluster: Cluster, member: Member, wanted: set[str]) -> None:
    wait_until(lambda: key_ids(cluster, member) == wanted, what="the keys", timeout_s=SOON_S)


def wait_for_end(cluster: Cluster, token: str) -> None:
    wait_until(lambda: answers(cluster, token) == {401}, what="the end of a token", timeout_s=SOON_S)


def test_tokens_of_the_key_before_end_with_the_grace_time_on_every_process(mended: Cluster) -> None:
    cluster, old_admin = mended, mended.admin_token
    (first,) = {frozenset(key_ids(cluster, member)) for member in cluster.members}
    old = cluster.user_token("olga")
    assert answers(cluster, old) == {200}
    rotated = cluster.filestore("token", "rotate-key", "--grace", f"{GRACE_S}s")
    ends_at_s = time.monotonic() + GRACE_S
    assert rotated.returncode == 0, rotated.stderr
    second = rotated.stdout.decode().split()[0]
    for member in cluster.members:
        wait_for_keys(cluster, member, {*first, second})
    new, new_admin = cluster.user_token("olga"), cluster.user_token("admin")
    assert answers(cluster, old) == answers(cluster, new) == answers(cluster, new_admin) == {200}
    assert time.monotonic() < ends_at_s, "too slow to say that the old token was good until then"
    cluster.token_file.write_text(new_admin)
    wait_until(lambda: time.monotonic() > ends_at_s, what="the end", timeout_s=GRACE_S + 1)
    wait_for_end(cluster, old)
    assert answers(cluster, old_admin) == {401}
    assert answers(cluster, new) == {200}
    assert {frozenset(key_ids(cluster, member)) for member in cluster.members} == {frozenset({second})}
    led = cluster.leader()
    cluster.kill(led)
    cluster.restart(led)
    cluster.wait_healthy()
    assert answers(cluster, cluster.user_token("olga")) == {200}  # whoever leads now signs with it as well


def test_key_without_grace_ends_all_tokens_at_once_and_a_coordinator_makes_the_admin_another(
    mended: Cluster,
) -> None:
    cluster, before = mended, mended.admin_token
    user = cluster.user_token("olga")
    rotated = cluster.filestore("token", "rotate-key")
    assert rotated.returncode == 0, rotated.stderr
    for token in (before, user):
        wait_for_end(cluster, token)
    for member in cluster.members:  # the new one comes with their next look at the cluster
        wait_for_keys(cluster, member, {rotated.stdout.decode().split()[0]})
    data = cluster.data(cluster.coordinators[0])
    made = cluster.filestore("token", "admin", "--data", str(data), "-o", str(cluster.token_file))
    assert made.returncode == 0, made.stderr
    cluster.remember(cluster.admin_token)
    assert answers(cluster, cluster.user_token("olga")) == {200}
