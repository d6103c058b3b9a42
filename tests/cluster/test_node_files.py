"""Each kind of file that a node keeps is damaged at random places: right answers, or a sentence; never a
wrong answer. What a node can come back from by itself, it comes back from.

The cases of one run are counted by kind, damage and outcome, and printed: `pytest -s` shows the table.
"""

import collections
import hashlib
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from deploy.dev_cluster import Member
from deploy.processes import is_ready, wait_until
from tests.blobs_on_disk import is_sound_on
from tests.cluster.file_damage import AT_START, AT_WORK, DAMAGES, IDENTITY
from tests.cluster.harness import Cluster
from tests.cluster.upload_steps import Steps

FILES = 3
SIZE_BYTES = 9_000_000  # three segments, the last of them short
PACKED_BYTES = 3_000
UPLOAD_BYTES = 6_000_000
SENT_BYTES = 5_000_000  # of an upload, when it is damaged
HEALING_S = 90.0
START_S = 45.0

QUICK = {
    ("blob", "swap"),
    ("sidecar", "flip"),
    ("upload offset", "zero"),
    ("node.json", "cut"),
    ("scrub.json", "zero"),
}

WITHOUT_PULL = [kind for kind in AT_START if "partial" not in kind]

Cases = collections.Counter[tuple[str, str, str]]  # kind, damage, outcome


def cases(kinds: Mapping[str, object], *chosen: str) -> list[object]:
    """Each of these kinds with each damage; few of them belong to the default suite."""
    assert set(chosen) <= set(kinds)
    return [
        pytest.param(kind, damage, marks=() if (kind, damage) in QUICK else pytest.mark.long)
        for kind in chosen
        for damage in DAMAGES
    ]


class World:
    """A cluster with files that must stay right, and a place to keep what is damaged."""

    def __init__(self, cluster: Cluster, aside: Path, dice: random.Random) -> None:
        self.cluster, self.aside, self.dice = cluster, aside, dice
        self.cases: Cases = Cases()
        self.contents = [dice.randbytes(size) for size in (SIZE_BYTES, PACKED_BYTES) for _ in range(FILES)]
        self.files = [cluster.store_everywhere(content) for content in self.contents]

    def check_files(self) -> None:
        """Every node that answers at all answers with the right bytes, or says that it cannot now."""
        for node in self.cluster.ready_nodes():
            for file_uuid, content in zip(self.files, self.contents, strict=True):
                answer = self.cluster.get(f"/files/{file_uuid}", node=node)
                assert answer.status in (200, 503), (node.id, answer.status, answer.body)
                assert answer.status == 503 or answer.body == content, f"wrong bytes from {node.id}"

    def wait_healed(self) -> None:
        """Every replica is there, and each byte of it is right."""

        def is_whole() -> bool:
            self.check_files()  # what is damaged is found by who reads it
            return all(
                is_sound_on(self.cluster.data(node), hashlib.sha256(content).hexdigest())
                for node in self.cluster.nodes
                for content in self.contents
            )

        wait_until(is_whole, what="whole replicas everywhere", timeout_s=HEALING_S)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three nodes; whatever is done to one is undone, or heals."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        made = World(cluster, tmp_path_factory.mktemp("aside"), random.Random(1))
        yield made
    print()
    for (kind, damage, outcome), count in sorted(made.cases.items()):
        print(f"{kind:<18} {damage:<7} {outcome:<34} {count:>4}")


def begin_upload(world: World) -> Steps:
    """An upload that three nodes have a part of; its acknowledged bytes are known."""
    steps = Steps(world.cluster, world.dice.randbytes(UPLOAD_BYTES))
    answer = steps.patch(0, SENT_BYTES)
    assert answer.status == 204, answer.body
    return steps


def end_upload(world: World, steps: Steps) -> str:
    """It goes on from what the cluster says, and ends with the right content."""
    node = world.dice.choice(world.cluster.ready_nodes())
    first = offset = steps.offset_once_told(node)
    assert offset <= SENT_BYTES
    # 503: the holder has lost it, and another goes on; 409: that one may have more, so it is asked again.
    # It may have everything: what was sent to the holder reached the others before the file was missed.
    while offset < UPLOAD_BYTES and (answer := steps.patch(offset, UPLOAD_BYTES, node)).status != 204:
        assert answer.status in (503, 409), answer.body
        offset = steps.offset_once_told(node)
    got = world.cluster.get(f"/files/{steps.file_uuid}", node=node)
    assert (got.status, got.body == steps.content) == (200, True)
    assert world.cluster.request("DELETE", f"/files/{steps.file_uuid}").status == 200
    return "whole" if first == SENT_BYTES else "from an earlier offset"


def hurt(world: World, node: Member, kind: str, damage: str, *, of: str = "") -> Path | None:
    """Damage one file of this kind on a node; None where there is none to damage in this way."""
    found = [path for path in AT_START[kind](world.cluster.data(node)) if of in str(path)]
    found = [path for path in found if damage == "remove" or path.stat().st_size]
    if not found:
        return None
    path = world.dice.choice(found)
    others = [
        other
        for each in world.cluster.nodes
        for other in AT_START[kind](world.cluster.data(each))
        if other.name != path.name or (other != path and kind in IDENTITY | {"upload data", "upload offset"})
    ]
    if damage == "swap" and not others:
        return None
    shutil.copy2(path, world.aside / "kept")
    DAMAGES[damage](world.dice, path, world.dice.choice(others) if others else None)
    return path


@pytest.mark.parametrize(("kind", "damage"), cases(AT_WORK, "blob", "sidecar"))
def test_replica_that_is_damaged_at_work_is_never_served(world: World, kind: str, damage: str) -> None:
    node = world.dice.choice(world.cluster.nodes)
    assert hurt(world, node, kind, damage) is not None
    world.wait_healed()
    world.cases[kind, damage, "healed at work"] += 1


@pytest.mark.parametrize(("kind", "damage"), cases(AT_WORK, "upload data", "upload offset", "upload epoch"))
def test_upload_whose_file_is_damaged_at_work_ends_with_the_right_content(
    world: World, kind: str, damage: str
) -> None:
    steps, beside = begin_upload(world), begin_upload(world)
    if hurt(world, steps.holder, kind, damage, of=steps.file_uuid) is None:
        world.cases[kind, damage, "no such file"] += 1
    world.cases[kind, damage, f"at work: {end_upload(world, steps)}"] += 1
    end_upload(world, beside)
    world.check_files()


@pytest.mark.long
@pytest.mark.parametrize(("kind", "damage"), cases(AT_START, *WITHOUT_PULL))
def test_node_that_starts_on_a_damaged_file_is_right_or_says_why_not(
    world: World, kind: str, damage: str
) -> None:
    cluster, is_of_upload = world.cluster, kind.startswith("upload")
    steps = begin_upload(world) if is_of_upload else None
    beside = begin_upload(world) if is_of_upload else None
    node = steps.holder if steps is not None else world.dice.choice(cluster.nodes)
    cluster.kill(node)
    path = hurt(world, node, kind, damage, of=steps.file_uuid if steps is not None else "")
    cluster.restart(node)
    outcome = started(world, node)
    if outcome != "starts":
        assert kind in IDENTITY, f"{kind}: {outcome}"
        assert path is not None
        world.check_files()
        if cluster.runs(node):
            cluster.kill(node)
        shutil.copy2(world.aside / "kept", path)
        cluster.restart(node)
    cluster.wait_healthy()
    if steps is not None and beside is not None:
        outcome = f"starts: {end_upload(world, steps)}"
        end_upload(world, beside)
    world.wait_healed()
    world.cases[kind, damage, outcome if path is not None else "no such file"] += 1


def started(world: World, node: Member) -> str:
    """How a start came out: "starts"; or with what sentence the node ended, or does not become ready."""
    cluster = world.cluster

    def has_decided() -> bool:
        return not cluster.runs(node) or is_ready(node.api_port, cluster.context)

    try:
        wait_until(has_decided, what="a decision", timeout_s=START_S)
    except Exception:  # noqa: BLE001  # it runs, and is not ready: it must say why
        return said(world, node)
    return "starts" if cluster.runs(node) else said(world, node)


def said(world: World, node: Member) -> str:
    """The sentence that an operator finds; a traceback is none."""
    words = world.cluster.last_words(node)
    log = (world.cluster.directory / "logs" / f"{node.id}.log").read_text()
    assert "Traceback" not in log[-4000:], log[-4000:]
    assert "filestore: " in words or '"level": "' in words, words
    return "out of service, with a sentence"


@pytest.mark.long
def test_partial_replica_that_is_damaged_is_finished_with_the_right_content(world: World) -> None:
    cluster, node = world.cluster, world.cluster.nodes[-1]
    content = os.urandom(400_000_000)  # so many that a pull is met while it runs
    file_uuid = cluster.store_everywhere(content)
    sha256 = hashlib.sha256(content).hexdigest()
    partial = cluster.data(node) / "partials" / sha256

    def has_begun() -> bool:
        return (partial / "state").exists() or cluster.replica(node, sha256).exists()

    kinds = [(kind, damage) for kind in ("content", "state") for damage in DAMAGES if damage != "swap"]
    for kind, damage in kinds:
        cluster.kill(node)
        cluster.replica(node, sha256).unlink()
        cluster.restart(node)
        cluster.wait_healthy()
        compared = cluster.filestore("job", "run", "compare", "--node-id", node.id, "--wait")
        assert compared.returncode == 0, compared.stdout
        wait_until(has_begun, what="a pull", timeout_s=60)
        cluster.kill(node)
        path = partial / kind
        if path.exists() and path.stat().st_size:
            DAMAGES[damage](world.dice, path, None)
            world.cases[f"partial {kind}", damage, "finished"] += 1
        cluster.restart(node)
        cluster.wait_healthy()
        cluster.wait_everywhere(sha256)
        assert cluster.replica(node, sha256).read_bytes() == content
    assert any(kind.startswith("partial") for kind, _, _ in world.cases)
    assert cluster.request("DELETE", f"/files/{file_uuid}").status == 200
