"""What is done to nodes and jobs, one at a time. An act that cannot be done now says so by ""."""

import http.client
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ca.errors import FilestoreError
from deploy.dev_cluster import Member
from tests.cluster.harness import Answer
from tests.healing.stage import AWAY_MAX, NODES_MAX, QUOTA_BYTES, Stage
from tests.packed_blobs import age_packed_all

Act = Callable[[Stage], str]

AGE_S: Final = 2 * 86_400.0  # older than anything that is spared because it is new
JOBS: Final = ("gc", "gc", "scrub", "compare", "rebalance", "repair", "trim", "freeze", "freeze", "thaw")


def kill(stage: Stage) -> str:
    """SIGKILL for a node."""
    if len(stage.away) >= AWAY_MAX:
        return ""
    node = stage.dice.choice(stage.present)
    stage.dead.add(node.id)
    stage.cluster.kill(node)
    return node.id


def restart(stage: Stage) -> str:
    """A dead node is started; it need not be ready for the next act."""
    dead = [node for node in stage.nodes if node.id in stage.dead]
    if not dead:
        return ""
    node = stage.dice.choice(dead)
    stage.cluster.restart(node)
    stage.dead.discard(node.id)
    return node.id


def hang(stage: Stage) -> str:
    """A node stands still, and keeps its connections."""
    if len(stage.away) >= AWAY_MAX:
        return ""
    node = stage.dice.choice(stage.present)
    stage.hang(node)
    return node.id


def wake(stage: Stage) -> str:
    """A node that stands still goes on."""
    hung = [node for node in stage.nodes if node.id in stage.hung]
    if not hung:
        return ""
    node = stage.dice.choice(hung)
    stage.wake(node)
    return node.id


def kill_leader(stage: Stage) -> str:
    """SIGKILL for the leading coordinator, which is started again at once."""
    answer = ask(stage, "GET", "/cluster/status")
    if answer is None or answer.status != 200 or not answer.json["leader"]:
        return ""
    leader = next(member for member in stage.cluster.coordinators if member.id == answer.json["leader"])
    stage.cluster.kill(leader)
    stage.cluster.restart(leader)
    return leader.id


def drain(stage: Stage) -> str:
    """A node is to lose all it has."""
    if len(stage.away) >= AWAY_MAX:
        return ""
    node = stage.dice.choice(stage.present)
    stage.draining.add(node.id)  # whatever comes of it: until it is taken back
    answer = ask(stage, "POST", f"/cluster/nodes/{node.id}/drain")
    return f"{node.id} {answer.status if answer else 'broken off'}"


def undrain(stage: Stage) -> str:
    """A draining node is to stay."""
    draining = [node for node in stage.nodes if node.id in stage.draining]
    if not draining:
        return ""
    return take_back(stage, stage.dice.choice(draining))


def take_back(stage: Stage, node: Member) -> str:
    """Cancel the draining of a node."""
    answer = ask(stage, "DELETE", f"/cluster/nodes/{node.id}/drain")
    if answer is not None and answer.status == 200:
        stage.draining.discard(node.id)
    return f"{node.id} {answer.status if answer else 'broken off'}"


def remove(stage: Stage) -> str:
    """A draining node that is empty leaves for good; a refusal says that it is not empty."""
    draining = [node for node in stage.nodes if node.id in stage.draining]
    if not draining:
        return ""
    node = stage.dice.choice(draining)
    answer = ask(stage, "DELETE", f"/cluster/nodes/{node.id}")
    if answer is not None and answer.status == 200:
        stage.removed.add(node.id)
        stage.dead.discard(node.id)
        stage.draining.discard(node.id)
        stage.cluster.kill(node)
        if stage.small is node:
            stage.free()
            stage.small = None
    return f"{node.id} {answer.status if answer else 'broken off'}"


def join(stage: Stage) -> str:
    """One more node."""
    if len(stage.nodes) >= NODES_MAX:
        return ""
    node_id = f"node-{len(stage.cluster.nodes) + 1}"
    answer = ask(stage, "POST", "/cluster/join-tokens", {"node_id": node_id})
    if answer is None or answer.status != 201:
        return "no token"
    try:
        stage.cluster.add_node(node_id, stage.cluster.remember(str(answer.json["token"])))
    except FilestoreError as error:  # nobody led for longer than a join waits
        return f"{node_id} {error.code}"
    return node_id


def fill(stage: Stage) -> str:
    """The node with the small disk has no room left."""
    if stage.small is None or stage.small.id in stage.away or len(stage.away) >= AWAY_MAX:
        return ""
    stage.fill()
    return stage.small.id


def free(stage: Stage) -> str:
    """It has room again."""
    if not stage.is_full:
        return ""
    stage.free()
    return "room"


def age(stage: Stage) -> str:
    """All that lies on a node came two days ago: nothing is spared because it is new."""
    node = stage.dice.choice(stage.nodes)
    let_time_pass(stage, node)
    return node.id


def let_time_pass(stage: Stage, node: Member) -> None:
    """As if what lies on a node had come before AGE_S."""
    at_s = time.time() - AGE_S
    for area in ("blobs", "cold", "partials", "unclaimed"):
        for path in (stage.cluster.data(node) / area).rglob("*"):
            with suppress(FileNotFoundError, PermissionError):  # it went, or nothing can be done to it now
                if path.lstat().st_mtime > at_s + AGE_S / 2:  # a change of its time is an arrival
                    os.utime(path, (at_s, at_s), follow_symlinks=False)
    with suppress(sqlite3.OperationalError):  # its process hangs, or the disk is full
        age_packed_all(stage.cluster.data(node), at_s, newer_than_s=at_s + AGE_S / 2)


def run_job(stage: Stage) -> str:
    """A job is triggered; gc without a grace, so that content that is released goes at once."""
    name = stage.dice.choice(JOBS)
    answer = ask(stage, "POST", f"/jobs/{name}", {"grace_s": 0, "yes_really": True} if name == "gc" else None)
    return f"{name} {answer.status if answer else 'broken off'}"


def change_quota(stage: Stage) -> str:
    """Of the bucket that has one: what was admitted may be refused in the end, or more is admitted."""
    quota_bytes = stage.dice.choice((QUOTA_BYTES // 16, QUOTA_BYTES, QUOTA_BYTES, 2 * QUOTA_BYTES, 0))
    answer = ask(stage, "PATCH", f"/buckets/{stage.bucket_id}", {"quota_bytes": quota_bytes})
    return f"{quota_bytes} {answer.status if answer else 'broken off'}"


def change_storage(stage: Stage) -> str:
    """Of the same bucket: what is in it turns cold or hot with the next job."""
    storage = stage.dice.choice(("cold", "cold", "hot", "auto"))
    answer = ask(stage, "PATCH", f"/buckets/{stage.bucket_id}", {"storage": storage})
    return f"{storage} {answer.status if answer else 'broken off'}"


def ask(stage: Stage, method: str, path: str, body: Any = None) -> Answer | None:
    """One request at a node that runs; None when it was broken off."""
    node = stage.dice.choice(stage.running)
    try:
        return stage.cluster.request(method, path, node=node, body=body)
    except (OSError, http.client.HTTPException):
        return None
