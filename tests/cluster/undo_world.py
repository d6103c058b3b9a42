"""A cluster whose files are deleted, purged, protected and brought back, and what each file should be like.

The model of `test_undo_search`: files, the trash, snapshots and what they promise. An act changes the cluster
and the model, and fails if the answer is not what the model expects.
"""

import json
import random
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from deploy.dev_cluster import Member
from deploy.processes import stop_children, wait_until
from tests.blobs_on_disk import age_all_on
from tests.cluster.harness import Answer, Cluster
from tests.cluster.small_disks import fill, move_to_small_disks
from tests.cluster.test_coordinators import Guest, answers, done
from tests.cluster.test_restored_cluster import healthy, restored
from tests.snapshot_promises import Promises

MIB: Final = 1 << 20
DISK_BYTES: Final = 160 * MIB
RESERVE_BYTES: Final = DISK_BYTES // 20
SIZES: Final = (3_000, 40_000, 300_000, 2 * MIB, 5 * MIB)  # small ones lie in packs
EQUAL_SHARE: Final = 0.7  # of the files: content that another file has, or had
PROTECTED_SHARE: Final = 0.1
UPLOADS_MAX: Final = 10  # of one content
KNOWN_MAX: Final = 8  # one of these is chosen
SOON_S: Final = 120.0
SQUEEZED_S: Final = 90.0
GONE_S: Final = 15 * 60.0  # as docs/undo.md promises
LIST_MAX: Final = 1000


@dataclass
class File:
    """A file in the model. `trashed_at`: the place of its deletion among all; 0: it was not deleted."""

    sha256: str
    is_protected: bool = False
    trashed_at: int = 0


@dataclass
class Copy(Promises):
    """A snapshot: its name, its file, what there was, and the nodes of then. `is_readable`: file by file."""

    snapshot_id: str
    path: Path
    files: dict[str, File]
    nodes: list[str]
    purged: set[str]
    is_readable: bool = True


@dataclass
class UndoWorld:
    """One seed. Timing is that of the machine: a seed repeats the acts, not each answer."""

    cluster: Cluster
    dice: random.Random
    disks: ExitStack
    aside: Path
    files: dict[str, File] = field(default_factory=dict)
    contents: dict[str, bytes] = field(default_factory=dict)  # by sha256, the oldest first
    copies: list[Copy] = field(default_factory=list)  # the oldest first
    purged: set[str] = field(default_factory=set)  # content that no file has since
    acts_done: dict[str, int] = field(default_factory=dict)
    steps: int = 0
    made: int = 0
    guest: Guest | None = None  # the coordinator of a restored cluster

    def begin(self) -> None:
        move_to_small_disks(
            self.cluster, self.cluster.nodes, self.disks, aside=self.aside, size_bytes=DISK_BYTES
        )

    def run(self, steps: int) -> None:
        acts = self._acts()
        for _ in range(steps):
            self.steps += 1
            act = self.dice.choice(acts)
            self.acts_done[act.__name__] = self.acts_done.get(act.__name__, 0) + 1
            act()

    def end(self) -> None:
        """End the coordinator of a restored cluster, which this process started."""
        if self.guest is not None:
            stop_children([self.cluster._development.children.pop(self.guest.id)])

    def _acts(self) -> list[Callable[[], None]]:
        """Return the acts, each as often as it is to come."""
        often = [self.create] * 12 + [self.delete] * 8 + [self.read] * 4 + [self.restore] * 4
        others = [self.delete_now] * 4 + [self.purge] * 3 + [self.snapshot] * 4 + [self.revive] * 4
        seldom = [self.protect] * 2 + [self.gc] * 3 + [self.go_back, self.lose_node]
        return [*often, *others, *seldom, self.fill_one, self.empty]

    # What clients do.

    def create(self) -> None:
        """A node whose disk is full hands the upload over; the client starts again then."""
        content, is_protected = self._content(), self.dice.random() < PROTECTED_SHARE
        body = {"filename": f"lab-{self.steps}", "project_id": "p", "size_bytes": len(content)}
        for _ in range(UPLOADS_MAX):
            made = self._post("/project-files", body | ({"protect_days": 30} if is_protected else {}))
            assert made.status == 201, made.body
            name = str(made.json["file_uuid"])
            stored = self.cluster.request("PUT", made.json["upload_url"], content=content, timeout_s=60)
            if stored.status == 200:
                self._add(name, File(sha256(content).hexdigest(), is_protected))
                return
            assert stored.status == 503, stored.body
            assert self._delete(f"/files/{name}").status == 200
        raise AssertionError("no node took the content")

    def read(self) -> None:
        if name := self._pick(trashed=False):
            self._check(name, self.files[name].sha256)
        if name := self._pick(trashed=True):
            assert self.cluster.get(f"/files/{name}", node=self._node()).status == 404

    def delete(self) -> None:
        if not (name := self._pick(trashed=False)):
            return
        answer = self._delete(f"/files/{name}")
        if self.files[name].is_protected:
            assert (answer.status, answer.json["code"]) == (409, "protected")
        else:
            assert answer.status == 200, answer.body
            self.files[name].trashed_at = self.steps

    def restore(self) -> None:
        if name := self._pick(trashed=True):
            answer = self._post(f"/trash/{name}/restore")
            assert answer.status == 200, answer.body
            self.files[name].trashed_at = 0
            self._check(name, self.files[name].sha256)

    def delete_now(self) -> None:
        """Delete for good, rather a file whose content other files have."""
        names = [name for name, file in self.files.items() if not file.trashed_at]
        shared = [name for name in names if self._count(self.files[name].sha256) > 1]
        if not (name := self.dice.choice(shared or names or [""])):
            return
        answer = self._delete(f"/files/{name}?now=1")
        if self.files[name].is_protected:
            assert (answer.status, answer.json["code"]) == (409, "protected")
        else:
            assert answer.status == 200, answer.body
            self._forget([name])

    def purge(self) -> None:
        if name := self._pick(trashed=True):
            assert self._delete(f"/trash/{name}").status == 200
            self._forget([name])

    def empty(self) -> None:
        for name in [name for name, file in self.files.items() if file.trashed_at]:
            assert self._delete(f"/trash/{name}").status == 200
            self._forget([name])

    def protect(self) -> None:
        if name := self._pick(trashed=False):
            answer = self._post(f"/files/{name}/protection", {"protect_days": self.dice.choice((60, 90))})
            if answer.status != 400 or not self.files[name].is_protected:  # it would end earlier
                assert answer.status == 200, answer.body
            self.files[name].is_protected = True

    def gc(self) -> None:
        """Collect all that nothing refers to."""
        done(self.cluster, "job", "run", "gc", "--wait", "--grace", "0", "--yes-really")

    def snapshot(self) -> None:
        run = json.loads(done(self.cluster, "job", "run", "snapshot", "--wait", "--json"))["result"]
        path = self.cluster.directory / run["coordinator"] / "backups" / run["file"]
        promised = {name: file.sha256 for name, file in self.files.items()}
        nodes = [node.id for node in self.cluster.nodes]
        taken = Copy(promised, path.stem, path, _copied(self.files), nodes, set(self.purged))
        self.copies.append(taken)

    def revive(self) -> None:
        """Bring one file back from a snapshot."""
        kept = [each for each in self.copies if each.promised and path_exists(each)]
        if kept:
            chosen = self.dice.choice(kept)
            self.revive_from(chosen, self.dice.choice(sorted(chosen.promised)))

    def revive_from(self, chosen: Copy, name: str) -> None:
        """Bring this file back: it is a new file, and readable. One of the trash is not listed there."""
        answer = self._post(f"/cluster/snapshots/{chosen.snapshot_id}/files/{name}/restore", {})
        if not chosen.is_readable:
            assert answer.status == 409, answer.body
        elif chosen.files[name].trashed_at:
            assert answer.status == 404, answer.body
        else:
            assert answer.status == 201, f"{chosen.snapshot_id}, {name}: {answer.body!r}"
            new = str(answer.json["file_uuid"])
            self._add(new, File(chosen.promised[name]))
            self._check(new, chosen.promised[name])

    # What befalls the machines, and what operators do then.

    def lose_node(self) -> None:
        """A machine is lost with its disk; it is removed, another one joins, and all replicas are made."""
        cluster = self.cluster
        self.repaired()
        gone = self.dice.choice(cluster.nodes)
        cluster.kill(gone)
        for each in cluster.data(gone).iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
        others = [node for node in cluster.nodes if node != gone]
        removal = partial(
            cluster.request, "DELETE", f"/cluster/nodes/{gone.id}?force=1&is_gone=1", node=others[0]
        )
        wait_until(lambda: removal().status == 200, what=f"{gone.id} to be silent", timeout_s=SOON_S)
        self._lay_out([member for member in cluster.members if member != gone])
        self.made += 1
        new = cluster.add_node(f"new-{self.made}", cluster.join_token(node=others[0]))
        move_to_small_disks(cluster, [new], self.disks, aside=self.aside, size_bytes=DISK_BYTES)
        self.repaired()

    def fill_one(self) -> None:
        """The disk of one node is full while files come: other nodes have room."""
        ballast = fill(self.cluster, self._node(), MIB)
        for _ in range(4):
            self.create()
        ballast.unlink()

    def fill_all(self) -> None:
        """All disks are almost full: the oldest snapshots lose content, then the oldest of the trash go.

        The model learns which; files that were not deleted stay.
        """
        self.snapshot()
        while not any(file.trashed_at for file in self.files.values()):
            self.create()
            self.delete()
        ballast = [
            fill(self.cluster, node, RESERVE_BYTES + RESERVE_BYTES // 4) for node in self.cluster.nodes
        ]
        evicted, trashed = self._evicted(), self._trashed()
        wait_until(
            lambda: self._evicted() != evicted or self._trashed() != trashed,
            what="content that makes room",
            timeout_s=SQUEEZED_S,
        )
        for each in ballast:
            each.unlink()
        wait_until(self._has_room, what="the leader to know of the room", timeout_s=SOON_S)
        self.gc()  # the leader has finished what it had begun
        lost = [each.snapshot_id in self._evicted() for each in self.copies]
        assert lost == sorted(lost, reverse=True), "a snapshot lost its content before an older one"
        self.copies = [each for each, is_lost in zip(self.copies, lost, strict=True) if not is_lost]
        left = self._trashed()
        gone = [name for name, file in self.files.items() if file.trashed_at and name not in left]
        newest = max((self.files[name].trashed_at for name in gone), default=0)
        assert all(self.files[name].trashed_at >= newest for name in left), "newer files left the trash first"
        self._forget(gone)

    def go_back(self) -> None:
        """Restore the cluster, on a new machine, to a snapshot without files that were deleted for good."""
        cluster = self.cluster
        nodes = [node.id for node in cluster.nodes]  # one that joined later would have to join again
        whole = [each for each in self.copies if each.promised.keys() == each.files.keys()]
        possible = [each for each in whole if each.nodes == nodes and path_exists(each)]
        if not possible:
            return
        chosen = self.dice.choice(possible)
        bundle = cluster.directory / f"{self.steps}.bundle"
        data = str(cluster.data(cluster.coordinators[0]))
        done(cluster, "coordinator", "bundle", "--data", data, "--output", str(bundle))
        if self.guest is None:
            cluster.kill(*cluster.coordinators)
        self.end()
        guest = self.guest = Guest(cluster, f"r{self.steps}")
        restored(cluster, ("--snapshot", str(chosen.path), "--bundle", str(bundle)), guest)
        wait_until(lambda: healthy(cluster, guest.member), what="all nodes are back", timeout_s=SOON_S)
        shutil.copyfile(guest.data / "admin.token", cluster.token_file)
        self._lay_out([guest.member, *cluster.nodes])
        for node in cluster.nodes:
            wait_until(partial(answers, cluster, node), what=f"{node.id} serves", timeout_s=SOON_S)
        self.files, self.purged = _copied(chosen.files), set(chosen.purged)
        del self.copies[self.copies.index(chosen) :]
        for each in self.copies:
            each.is_readable = False
        self.check_all()

    # Checks.

    def check_all(self) -> None:
        """Every file that was not deleted is readable, and the trash has what it should have."""
        for name, file in self.files.items():
            if not file.trashed_at:
                self._check(name, file.sha256)
        assert self._trashed() == {name for name, file in self.files.items() if file.trashed_at}

    def verdict(self) -> float:
        """Check all that is promised at the end; return how many seconds content took to leave the disks."""
        cluster = self.cluster
        self.repaired()
        self.check_all()
        self.gc()
        for node in cluster.nodes:  # what has just arrived is spared for ten of the fifteen minutes
            age_all_on(cluster.data(node), time.time() - 3600)
        began_s = time.monotonic()
        wait_until(lambda: not self._on_disks(self.purged), what="purged content to go", timeout_s=GONE_S)
        purged_s = time.monotonic() - began_s
        for each in self.copies:
            for content in {*each.promised.values()}:
                assert self._on_disks({content}), f"{each.snapshot_id}: no disk has {content}"
        for name in [name for name, file in self.files.items() if file.trashed_at]:
            assert self._post(f"/trash/{name}/restore").status == 200
            self.files[name].trashed_at = 0
        self.check_all()
        for each in self.copies:
            if path_exists(each):
                for name in sorted(each.promised):
                    self.revive_from(each, name)
        return purged_s

    def repaired(self) -> None:
        """Wait until no content lacks a replica."""
        self.cluster.wait_healthy(SOON_S)
        short = "SELECT sha256 FROM blobs WHERE missing > 0 AND reference_count > 0"
        wait_until(lambda: not self.cluster.logged(short), what="all replicas", timeout_s=SOON_S)

    def _check(self, name: str, content_sha256: str) -> None:
        answer = self.cluster.get(f"/files/{name}", node=self._node(), timeout_s=60)
        assert answer.status == 200, f"{name} is unreadable: {answer.status} {answer.body[:300]!r}"
        assert answer.body == self.contents[content_sha256], f"{name} has wrong bytes"

    # Parts of these.

    def _add(self, name: str, file: File) -> None:
        self.files[name] = file
        self.purged.discard(file.sha256)

    def _forget(self, names: list[str]) -> None:
        """Forget files that were deleted for good."""
        gone = {name: self.files.pop(name).sha256 for name in names}
        left = {file.sha256 for file in self.files.values()}
        for each in self.copies:
            each.purge(gone, left)
        self.purged |= {*gone.values()} - left

    def _content(self) -> bytes:
        if self.contents and self.dice.random() < EQUAL_SHARE:
            return self.dice.choice([*self.contents.values()][-KNOWN_MAX:])
        content = self.dice.randbytes(self.dice.choice(SIZES))
        return self.contents.setdefault(sha256(content).hexdigest(), content)

    def _count(self, content_sha256: str) -> int:
        return sum(file.sha256 == content_sha256 for file in self.files.values())

    def _pick(self, *, trashed: bool) -> str:
        names = [name for name, file in self.files.items() if bool(file.trashed_at) == trashed]
        return self.dice.choice(names) if names else ""

    def _node(self) -> Member:
        return self.dice.choice(self.cluster.nodes)

    def _post(self, path: str, body: Any = None) -> Answer:
        return self.cluster.post(path, body, node=self._node(), timeout_s=60)

    def _delete(self, path: str) -> Answer:
        return self.cluster.request("DELETE", path, node=self._node(), timeout_s=60)

    def _listed(self, path: str, key: str) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = self.cluster.get(f"{path}?limit={LIST_MAX}", node=self._node()).json[
            key
        ]
        return listed

    def _trashed(self) -> set[str]:
        return {str(each["file_uuid"]) for each in self._listed("/trash", "files")}

    def _evicted(self) -> set[str]:
        listed = self._listed("/cluster/snapshots", "snapshots")
        return {str(each["snapshot_id"]) for each in listed if each["hold"] == "evicted"}

    def _has_room(self) -> bool:
        answer = self.cluster.get("/cluster/status")
        nodes = answer.json["nodes"] if answer.status == 200 else []
        return bool(nodes) and all(each["free_bytes"] > 4 * RESERVE_BYTES for each in nodes)

    def _on_disks(self, contents: set[str]) -> set[str]:
        """The content that some node has."""
        nodes = self.cluster.nodes
        return {each for each in contents if any(self.cluster.holds(node, each) for node in nodes)}

    def _lay_out(self, members: list[Member]) -> None:
        """The members of the cluster are others now."""
        development = self.cluster._development
        development.layout = msgspec.structs.replace(development.layout, members=members)


def path_exists(copy: Copy) -> bool:
    """Whether its coordinator still has the file: it keeps the newest seven."""
    return copy.path.exists()


def _copied(files: dict[str, File]) -> dict[str, File]:
    return {name: File(file.sha256, file.is_protected, file.trashed_at) for name, file in files.items()}
