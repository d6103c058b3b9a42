"""Each kind of file that a coordinator keeps is damaged at random places: right answers, or out of service
with a sentence. Never a wrong answer, and never does another coordinator end for it.

The cases of one run are counted by kind, damage and outcome, and printed: `pytest -s` shows the table.
"""

import collections
import os
import random
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ca.errors import Unavailable
from coordinator.storage import segment as form
from coordinator.storage.stored_sums import SUMS, SUMS_IN_BLOCK
from deploy.dev_cluster import Member
from deploy.processes import is_ready, wait_until
from tests.cluster.coordinator_damage import (
    DAMAGES,
    IDENTITY,
    IN_PLACE,
    KINDS,
    LEDGER,
    MADE,
    SPARE,
)
from tests.cluster.harness import Cluster

START_S = 40.0
BACK_S = 60.0
PAGE_BYTES = 4096  # of the database, and a block of its sums
CHANGED_NS_AT = 12  # in the first block: the time of the database
ROUNDS_OF_LEDGER = 3  # of each kind, damage and place, in the long suite
ROUNDS_OF_IDENTITY = 2
CHANGES_AWAY = 5  # that a member which lags has missed
PLACES = ("follower", "leader", "lagging")
AT_ONCE = 11  # kinds that are damaged before one start, in the default suite

Cases = collections.Counter[tuple[str, str, str]]  # kind, damage, outcome


@dataclass
class Hurt:
    """One file that was damaged: what it was is kept."""

    kind: str
    damage: str
    path: Path
    kept: Path

    def put_back(self) -> None:
        """As if somebody had brought a backup."""
        shutil.copy2(self.kept, self.path)


def lasting(told: Any) -> Any:
    """Without what a bucket counts, which every file changes."""
    if "buckets" not in told:
        return told
    return [[each["bucket_id"], each["name"], each["owner_id"]] for each in told["buckets"]]


def sums_are_known(data: Path) -> bool:
    """Whether the sum of every page is stored for this state of a small database.

    Not for ten seconds after another process has written there, as `filestore token admin` does
    (coordinator/storage/stored_sums.py).
    """
    facts, stored = (data / "state.sqlite").stat(), (data / f"state.sqlite{SUMS}").read_bytes()
    (changed_ns,) = struct.unpack_from("<q", stored, CHANGED_NS_AT)
    pages = facts.st_size // PAGE_BYTES
    known = [found for (found,) in struct.iter_unpack("<Q", stored[PAGE_BYTES : 2 * PAGE_BYTES])][:pages]
    return changed_ns == facts.st_mtime_ns and len(known) == pages <= SUMS_IN_BLOCK and all(known)


class World:
    """A cluster, and a model of all that its coordinators know."""

    def __init__(self, cluster: Cluster, aside: Path, dice: random.Random) -> None:
        self.cluster, self.aside, self.dice = cluster, aside, dice
        self.cases: Cases = Cases()
        self.records: dict[str, Any] = {}  # by path: what must be answered, 404 for what was deleted
        self._numbers = iter(range(1_000_000))
        self.file_uuids = [cluster.store(dice.randbytes(1000), f"lab-{n}.gns3p") for n in range(3)]
        for user_id in ("alice", "bob"):
            cluster.user_token(user_id)
        bucket = cluster.post("/buckets", {"name": "kept"}).json
        permission = {"permission": "read", "principal_id": "alice", "principal_type": "user"}
        assert cluster.post(f"/files/{self.file_uuids[0]}/permissions", permission).status < 300
        self._learn(
            *(f"/project-files/{each}" for each in self.file_uuids),
            *("/auth/users", "/buckets", f"/buckets/{bucket['bucket_id']}"),
            f"/files/{self.file_uuids[0]}/permissions",
        )

    def _learn(self, *paths: str) -> None:
        for path in paths:
            answer = self.cluster.get(path)
            assert answer.status == 200, (path, answer.body)
            self.records[path] = lasting(answer.json)

    def change(self) -> None:
        """Another record comes, an older one goes, and the model knows it."""
        created = self.cluster.create(f"made-{next(self._numbers)}.gns3p")["file_uuid"]
        self._learn(f"/project-files/{created}")
        made = [path for path, told in self.records.items() if "made-" in str(told)]
        if len(made) > 10:
            gone = self.dice.choice(made)
            deleted = self.cluster.request("DELETE", gone.replace("/project-files/", "/files/"))
            if deleted.status == 404:
                deleted = self.cluster.request("DELETE", gone)
            assert deleted.status == 200, deleted.body
            del self.records[gone]

    def check(self) -> int:
        """What every coordinator answers is right, or no answer at all; how many answered."""
        answered = 0
        for member in self.cluster.coordinators:
            for path, expected in self.records.items():
                try:
                    answer = self.cluster.get(path, node=member)
                except OSError:
                    break  # it is down
                assert answer.status in (200, 503), (member.id, path, answer.status, answer.body)
                if answer.status == 503:
                    break
                assert lasting(answer.json) == expected, (member.id, path)
            else:
                answered += self._names_nodes(member)
        return answered

    def _names_nodes(self, member: Member) -> bool:
        answer = self.cluster.get("/cluster/nodes", node=member)
        assert answer.status in (200, 503), (member.id, answer.body)
        if answer.status == 503:
            return False
        assert [each["id"] for each in answer.json["nodes"]] == [node.id for node in self.cluster.nodes]
        return True

    def all_vote(self) -> bool:
        """Whether one leads, and none is only on its way back: else to end another one ends the quorum."""
        answer = self.cluster.get("/cluster/status")
        if answer.status != 200 or not answer.json["leader"]:
            return False
        return all(each.get("recovering") is False for each in answer.json["coordinators"])

    def place(self, where: str) -> Member:
        """The coordinator that is to be damaged, killed; one that lags has missed some changes.

        One that is `stopped` has ended by itself: its database holds all, and its WAL covers no page of it.
        The sums of its pages are stored.
        """
        leader = self.cluster.leader()
        others = [member for member in self.cluster.coordinators if member != leader]
        member = leader if where == "leader" else self.dice.choice(others)
        if where == "stopped":
            data = self.cluster.data(member)
            wait_until(lambda: sums_are_known(data), what="a sum of every page", timeout_s=BACK_S)
        (self.cluster.terminate if where == "stopped" else self.cluster.kill)(member)
        if where == "lagging":
            for _ in range(CHANGES_AWAY):
                self.change()
        return member

    def hurt(self, member: Member, kind: str, damage: str) -> Hurt | None:
        """Damage one file of this kind; None where there is none to damage in this way."""
        found = [path for path in KINDS[kind](self.cluster.data(member)) if path.stat().st_size]
        if not found:
            return None
        path = self.dice.choice(found)
        others = [
            each
            for other in self.cluster.coordinators
            if other != member and kind not in MADE
            for each in KINDS[kind](self.cluster.data(other))
        ]
        if damage == "swap" and not others:
            return None
        kept = self.aside / f"{path.name}.kept"
        shutil.copy2(path, kept)
        self._cut_to_records(path, kind)
        times = path.stat()
        DAMAGES[damage](self.dice, path, self.dice.choice(others) if others else None)
        if damage in IN_PLACE:
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return Hurt(kind, damage, path, kept)

    def _cut_to_records(self, path: Path, kind: str) -> None:
        """Without what is only preallocated: hardly any damage would hit a record."""
        if kind in ("log segment", "last log segment"):
            content = path.read_bytes()
            ends = [record.end for record in form.read_records(content, form.HEADER_BYTES)]
            path.write_bytes(content[: max(ends, default=form.HEADER_BYTES)])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three coordinators and a node; whatever is done to one is undone, or heals."""
    directory = tmp_path_factory.mktemp("cluster")
    with Cluster(directory, node_count=1, replicas=1, write_quorum=1) as cluster:
        made = World(cluster, tmp_path_factory.mktemp("aside"), random.Random(1))
        yield made
    print()
    for (kind, damage, outcome), count in sorted(made.cases.items()):
        print(f"{kind:<20} {damage:<10} {outcome:<34} {count:>4}")
    print(f"{sum(made.cases.values())} cases")


def started(world: World, member: Member) -> str:
    """How a start came out: "starts"; or with what sentence the coordinator ended, or does not serve."""
    cluster = world.cluster
    log = cluster.directory / "logs" / f"{member.id}.log"
    begins_at = log.stat().st_size
    others = {other.id: cluster.pid(other) for other in cluster.coordinators if other != member}
    cluster.restart(member)

    def has_decided() -> bool:
        return not cluster.runs(member) or is_ready(member.api_port, cluster.context)

    try:
        wait_until(has_decided, what="a decision", timeout_s=START_S)
    except Unavailable:
        assert cluster.runs(member)  # it runs, and serves nothing: it must say why
    for other in cluster.coordinators:
        if other != member:
            assert cluster.runs(other), f"{other.id} ended: {cluster.last_words(other)}"
            assert cluster.pid(other) == others[other.id]
    said = log.read_text()[begins_at:]
    assert "Traceback" not in said, said[-4000:]
    if cluster.runs(member) and is_ready(member.api_port, cluster.context):
        if "the database is moved aside and rebuilt" in said:
            return "starts with a state built again"
        return "starts and recovers" if "neither votes nor leads" in said else "starts"
    words = cluster.last_words(member)
    assert "filestore: " in words or '"level": "' in words, words
    return "out of service, with a sentence"


def try_case(world: World, where: str, *damages: tuple[str, str]) -> None:
    """Damage files of one coordinator, start it, and look at all of them; then all is well again."""
    cluster = world.cluster
    member = world.place(where)
    made = [world.hurt(member, kind, damage) for kind, damage in damages]
    hurt = [each for each in made if each is not None]
    try:
        outcome = started(world, member)
        world.check()
    except BaseException:
        for each in hurt:  # so that the cases after this one tell their own story
            each.put_back()
        raise
    if outcome.startswith("out"):
        culprits = {each.kind for each in hurt}
        assert culprits & {*IDENTITY, *LEDGER}, f"{culprits}: {cluster.last_words(member)}"
        if cluster.runs(member):
            cluster.kill(member)
        for each in hurt:
            each.put_back()
        assert started(world, member).startswith("starts"), cluster.last_words(member)
    world.change()

    def all_answer() -> bool:
        return world.check() == len(cluster.coordinators) and world.all_vote()

    wait_until(all_answer, what=f"all answer after {damages}", timeout_s=BACK_S)
    for found, (kind, damage) in zip(made, damages, strict=True):
        world.cases[kind, damage, "no such file" if found is None else outcome] += 1


def chosen(kinds: Mapping[str, object], number: int) -> list[tuple[str, str]]:
    """One damage for each of these kinds, another one for each number."""
    names = list(DAMAGES)
    return [(kind, names[(number + position) % len(names)]) for position, kind in enumerate(kinds)]


@pytest.mark.long
@pytest.mark.parametrize(("number", "where"), list(enumerate(PLACES)))
def test_coordinator_starts_on_small_files_that_are_damaged(world: World, number: int, where: str) -> None:
    """But for the two copies of one file at once."""
    kinds = dict(list(SPARE.items())[:AT_ONCE])
    del kinds["instance.json.copy" if number % 2 else "instance.json"]
    try_case(world, where, *chosen(kinds, number))


def test_coordinator_that_lost_the_end_of_its_log_comes_back_by_itself(world: World) -> None:
    member = world.place("follower")
    (path,) = LEDGER["last log segment"](world.cluster.data(member))
    content = path.read_bytes()
    records = [r for r in form.read_records(content, form.HEADER_BYTES) if r.kind == form.RecordKind.ENTRY]
    path.write_bytes(content[: records[-3].offset] + bytes(len(content) - records[-3].offset))
    assert started(world, member) == "starts and recovers"
    world.change()

    wait_until(world.all_vote, what="its recovery", timeout_s=BACK_S)
    wait_until(lambda: world.check() == 3, what="all answer", timeout_s=BACK_S)
    world.cases["last log segment", "end", "starts and recovers"] += 1


def test_database_that_changed_while_nothing_ran_is_built_again(world: World) -> None:
    """Of a coordinator that was killed, the WAL may write over the page, and then nothing is wrong."""
    try_case(world, "stopped", ("state.sqlite", "flip"))
    (outcome,) = (o for kind, damage, o in world.cases if (kind, damage) == ("state.sqlite", "flip"))
    assert outcome == "starts with a state built again"


def long_cases() -> list[object]:
    """Each kind with each damage at each place."""
    return [
        pytest.param(kind, damage, where, marks=pytest.mark.long)
        for kind in KINDS
        for damage in DAMAGES
        for where in PLACES
    ]


@pytest.mark.parametrize(("kind", "damage", "where"), long_cases())
def test_coordinator_with_a_damaged_file_is_right_or_says_why_not(
    world: World, kind: str, damage: str, where: str
) -> None:
    rounds = 1 if kind in SPARE else ROUNDS_OF_IDENTITY if kind in IDENTITY else ROUNDS_OF_LEDGER
    for _ in range(rounds):
        try_case(world, where, (kind, damage))
