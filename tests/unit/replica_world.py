"""A cluster with disks, as far as replicas go: the real state machine, and nodes that look, keep and delete.

Everything that takes time in a cluster is several steps here, and anything may happen in between: uploads
look at one node after the other before they complete; nodes read a list, delete file by file, and report;
reports and additions of the leader may be on their way while their process ends.
"""

import sqlite3
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from coordinator.reconcile.facts import Facts
from coordinator.reconcile.trim import count_surplus, rank_surplus
from coordinator.storage.state_store import Store
from metadata.model.records import HEALTHY, ClusterView
from metadata.model.replica_records import SurplusPage
from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, HOUR_MS, Refusal, State, create

CONTENTS = ("aa", "bb")
NODES = ("n1", "n2", "n3", "n4")
REPLICAS, WRITE_QUORUM = 3, 2  # of the state's bootstrap
PIN_MS = 600_000
DAY_MS = 24 * HOUR_MS
QUARANTINE_MS = 7 * DAY_MS
ROUNDS_MAX = 20
NEXT_STATES: dict[str, Literal["healthy", "down", "returning"]] = {
    "healthy": "down",
    "down": "returning",
    "returning": "healthy",
}


class Round(Struct):
    """What a node makes of one list of doomed replicas."""

    as_of: int
    left: list[tuple[str, bool]]
    dropped: list[str] = []
    spared: list[str] = []


class Node(Struct):
    """A disk (content to the time it was written) and a process."""

    name: str
    disk: dict[str, int] = {}
    quarantine: dict[str, int] = {}
    pins: dict[str, int] = {}
    is_dead: bool = False
    is_fenced: bool = False  # its process has had an answer to its first report
    round: Round | None = None
    deletions: list[str] = []  # only of a node that reports before it deletes
    marks: dict[str, int] = {}  # how often each content came or was affirmed
    orphans: list[tuple[str, int]] = []  # that the log was told of, with their marks of before

    def has(self, content: str) -> bool:
        return content in self.disk or content in self.quarantine


class Upload(Struct):
    """One that has not completed. `as_of` 0: it has not begun to look."""

    name: str
    content: str
    as_of: int = 0
    seen: list[str] = []


class World:
    """Each action takes a number, which says for what; it does nothing where it makes no sense."""

    def __init__(self, *, pins: bool, reports_first: bool = False) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.state = State(Path(":memory:"), write_quorum=WRITE_QUORUM, store=Store.over(self.db, self.db))
        self.state.nodes(*NODES)
        for number, name in enumerate(NODES, 1):
            self.state.done(commands.AnnounceNode(node_id=name, peer_port=number, zone="", weight=100))
        self.nodes = [Node(name) for name in NODES]
        self.uploads: list[Upload] = []
        self.files: dict[str, str] = {}
        self.damaged: set[tuple[str, str]] = set()  # nobody knows yet
        self.excused: set[str] = set()  # contents that have suffered damage or a death
        self.on_their_way: list[tuple[int, commands.AnyCommand]] = []
        self.has_pins = pins
        self.reports_first = reports_first
        self.made = 0

    def close(self) -> None:
        self.db.close()

    # What users do.

    def upload(self, number: int) -> None:
        self.made += 1
        name = f"f{self.made}"
        self.state.done(create(ADMIN, name))
        self.uploads.append(Upload(name, CONTENTS[number % 2]))

    def look(self, number: int) -> None:
        """An upload finds or makes a copy on one more node."""
        if self.uploads:
            self._look(self.uploads[number % len(self.uploads)], self._node(number // 2))

    def _look(self, upload: Upload, node: Node) -> None:
        if not upload.as_of:
            record = self.state.ask(queries.GetUpload(caller=ADMIN, file_uuid=upload.name))
            if isinstance(record, Refusal):
                self.uploads.remove(upload)
                return
            upload.as_of = record["as_of"]
        if not node.is_dead and node.name not in upload.seen:
            self._affirm(node, upload.content)
            upload.seen.append(node.name)

    def complete(self, number: int) -> None:
        ready = [upload for upload in self.uploads if len(upload.seen) >= WRITE_QUORUM]
        if ready:
            self._complete(ready[number % len(ready)])

    def _complete(self, upload: Upload) -> None:
        command = commands.CompleteUpload(
            caller=ADMIN,
            file_uuid=upload.name,
            blob_sha256=upload.content,
            size_bytes=5,
            replicas=upload.seen,
            as_of=upload.as_of,
        )
        answer = self.state.apply(command)
        if answer == "unavailable":
            upload.as_of, upload.seen = 0, []
            return
        self.uploads.remove(upload)
        if not isinstance(answer, Refusal):
            self.files[upload.name] = upload.content

    def store(self, number: int) -> None:
        """An upload in one go."""
        self.upload(number)
        upload = self.uploads[-1]
        for other in range(REPLICAS):
            self._look(upload, self._node(number // 2 + other))
        if len(upload.seen) >= WRITE_QUORUM:
            self._complete(upload)

    def delete(self, number: int) -> None:
        if self.files:
            name = sorted(self.files)[number % len(self.files)]
            self.state.done(commands.DeleteFile(caller=ADMIN, file_uuid=name, kind=""))
            del self.files[name]

    # What the leader does.

    def collect(self, number: int) -> None:
        self.state.done(commands.Collect(rows_max=1 + number % 3, grace_ms=(0, DAY_MS)[number % 4 == 3]))

    def release(self, number: int) -> None:
        self.state.apply(
            commands.ReleaseReplica(
                sha256=CONTENTS[number % 2], node_id=self._node(number // 2).name, others_min=number % 3
            )
        )

    def trim(self, number: int) -> None:
        """The leader lets go of what is too much, as it plans, when the others say that they are there."""
        view = msgspec.convert(self.state.ask(queries.GetView()), ClusterView)
        reachable = frozenset(node.name for node in self.nodes if not node.is_dead)
        facts = Facts(tuple(view.nodes), (), reachable, view.replicas, view.write_quorum)
        page = msgspec.convert(self.state.ask(queries.ListSurplus()), SurplusPage)
        for blob in page.blobs:
            going = rank_surplus(blob, facts)[: count_surplus(blob, facts)][: 1 + number % 2]
            others = [
                node
                for node in self.nodes
                if node.name in set(facts.counting_holders(blob.replicas)) - set(going)
            ]
            if sum(node.has(blob.sha256) for node in others) < facts.wanted:
                continue
            for node_id in going:
                command = commands.ReleaseReplica(
                    sha256=blob.sha256, node_id=node_id, others_min=facts.wanted
                )
                self.state.done(command)

    def pull(self, number: int) -> None:
        """A node fetches a copy by order; what the leader makes of it is on its way."""
        content, node = CONTENTS[number % 2], self._node(number // 2)
        if node.is_dead or not any(other.has(content) for other in self.nodes):
            return
        command = commands.AddReplica(sha256=content, node_id=node.name, as_of=self.state.log_index)
        self._affirm(node, content)
        self.on_their_way.append((self.state.at_ms, command))

    def mark(self, number: int) -> None:
        node = self._node(number)
        state = self._states().get(node.name)
        if not node.is_dead and state is not None:
            self.state.done(commands.MarkNode(node_id=node.name, state=NEXT_STATES[state]))

    def recount(self, number: int) -> None:
        self.state.done(commands.RecountReplicas(rows_max=1 + number % 2))

    def remove_dead(self, number: int) -> None:
        del number
        for node in self.nodes:
            if node.is_dead and node.name in self._states():
                self.state.apply(commands.MarkNode(node_id=node.name, state="down"))
                self.state.done(commands.RemoveNode(caller=ADMIN, node_id=node.name, force=True))

    def expire(self, number: int) -> None:
        self.state.done(commands.Expire(rows_max=1 + number))

    # What nodes do.

    def read_list(self, number: int) -> None:
        node = self._node(number)
        if node.is_dead or node.round is not None or node.deletions:
            return
        if not node.is_fenced:
            self.state.done(commands.ReportDropped(node_id=node.name, as_of=self.state.log_index))
            node.is_fenced = True
        page = self.state.ask(queries.ListReplicasToDelete(node_id=node.name))
        left = [(each["sha256"], each["wanted"]) for each in page["replicas"]]
        node.round = Round(page["log_index"], left)

    def act(self, number: int) -> None:
        """A node drops or spares the next replica of its list."""
        node = self._node(number)
        if node.round is None or not node.round.left:
            return
        content, wanted = node.round.left.pop()
        if content in node.disk and (wanted or self._is_pinned(node, content)):
            node.round.spared.append(content)
            return
        node.round.dropped.append(content)
        node.quarantine.pop(content, None)
        if self.reports_first:
            node.deletions.append(content)
        else:
            node.disk.pop(content, None)

    def report(self, number: int) -> None:
        node = self._node(number)
        if node.round is None or node.round.left:
            return
        command = self._report_of(node, node.round)
        if number // 4 % 2:  # it is on its way, and the node sends it again when it hears nothing
            self.on_their_way.append((self.state.at_ms, command))
            return
        self.state.apply(command)  # a refusal says that an earlier copy came first
        node.round = None

    def serve(self, number: int) -> None:
        """A whole round of a node in one go."""
        self.read_list(number)
        while (round := self._node(number).round) is not None and round.left:  # noqa: A001
            self.act(number)
        self.report(number)

    def delete_late(self, number: int) -> None:
        node = self._node(number)
        if node.round is None and node.deletions:
            node.disk.pop(node.deletions.pop(), None)

    def arrive(self, number: int) -> None:
        """Something that was on its way is applied, whoever sent it; nothing is on its way for a day."""
        if self.on_their_way:
            sent_at_ms, command = self.on_their_way.pop(number % len(self.on_their_way))
            if self.state.at_ms - sent_at_ms < DAY_MS:
                self.state.apply(command)
                self._note_lost(command)

    def restart(self, number: int) -> None:
        node = self._node(number)
        node.pins, node.round, node.is_fenced, node.orphans = {}, None, False, []

    def tell_orphans(self, number: int) -> None:
        """A node tells the log what came and nobody has claimed."""
        node = self._node(number)
        if node.is_dead or node.name not in self._states():
            return
        unclaimed = [content for content in sorted(node.disk) if not self._is_pinned(node, content)]
        marks = [(content, node.marks.get(content, 0)) for content in unclaimed]
        told = self.state.done(commands.ReportOrphans(node_id=node.name, sha256s=unclaimed))
        node.orphans = [(content, mark) for content, mark in marks if content in told]

    def drop_orphan(self, number: int) -> None:
        """It deletes one of them, unless that came again, or somebody was told that it is there."""
        node = self._node(number)
        if node.orphans:
            content, mark = node.orphans.pop()
            if node.marks.get(content, 0) == mark:
                node.disk.pop(content, None)

    def compare(self, number: int) -> None:
        """A node holds its disk against the log, in both directions."""
        node = self._node(number)
        if node.is_dead:
            return
        held = {
            each["sha256"]
            for each in self.state.ask(queries.ListReplicas(node_id=node.name))["replicas"]
            if not each["doomed"]
        }
        for content in sorted(held & set(node.quarantine)):
            node.disk[content] = node.quarantine.pop(content)
            node.marks[content] = node.marks.get(content, 0) + 1
        if missing := sorted(content for content in held if not node.has(content)):
            command = commands.ReportLost(node_id=node.name, sha256s=missing, reason="missing")
            self.on_their_way.append((self.state.at_ms, command))
            if number % 2:
                self.arrive(len(self.on_their_way) - 1)
        self._put_aside(node)

    def _put_aside(self, node: Node) -> None:
        at_ms = self.state.at_ms
        asked = queries.KnownReplicas(node_id=node.name, sha256s=sorted({*node.disk, *node.quarantine}))
        known = {each["sha256"]: each["state"] for each in self.state.ask(asked)}
        for content in sorted(name for name, state in known.items() if state == "wanted"):
            node.disk.setdefault(content, node.quarantine.pop(content, at_ms))
            node.marks[content] = node.marks.get(content, 0) + 1
            self.state.done(
                commands.AddReplica(sha256=content, node_id=node.name, as_of=self.state.log_index)
            )
        for content, since_ms in list(node.disk.items()):
            is_old = at_ms - since_ms >= DAY_MS and not self._is_pinned(node, content)
            if is_old and known.get(content, "unreferenced") == "unreferenced":
                del node.disk[content]
                node.quarantine[content] = at_ms
        for content, since_ms in list(node.quarantine.items()):
            if at_ms - since_ms >= QUARANTINE_MS and known.get(content, "unreferenced") == "unreferenced":
                del node.quarantine[content]

    # What happens to them.

    def wait(self, number: int) -> None:
        self.state.at_ms += (DAY_MS + HOUR_MS, 1, PIN_MS // 2, PIN_MS + 1)[number % 12 and 1 + number % 3]

    def damage(self, number: int) -> None:
        content, node = CONTENTS[number % 2], self._node(number // 2)
        if node.disk.pop(content, None) is not None and not node.has(content):
            self.damaged.add((node.name, content))
            self.excused.add(content)

    def die(self, number: int) -> None:
        """One node at most: for good, with its disk."""
        if any(node.is_dead for node in self.nodes):
            return
        node = self._node(number)
        self.restart(number)
        self.excused |= {row[0] for row in self._rows() if row[1] == node.name}
        self.excused |= {upload.content for upload in self.uploads if node.name in upload.seen}
        self.excused |= set(node.disk) | set(node.quarantine)
        node.is_dead, node.disk, node.quarantine = True, {}, {}

    # What must be true.

    def check(self) -> None:
        """After every action."""
        by_name = {node.name: node for node in self.nodes}
        states = self._states()
        held: dict[str, list[str]] = {content: [] for content in CONTENTS}
        for content, name, doomed_at in self._rows():
            if doomed_at is None and name in states:
                held[content].append(name)
                is_there = by_name[name].has(content) or by_name[name].is_dead
                assert is_there or (name, content) in self.damaged, f"{name} does not hold {content}"
        for name, content in self.files.items():
            answer = self.state.ask(queries.GetContent(caller=ADMIN, file_uuid=name))
            assert answer["file"]["blob_sha256"] == content
            assert answer["replicas"] == sorted(held[content])
            if content not in self.excused:
                assert len(held[content]) >= WRITE_QUORUM, f"{content} of {name} is below its quorum"
        self._check_counts(held)

    def _check_counts(self, held: dict[str, list[str]]) -> None:
        blobs = self._select("SELECT sha256, reference_count, missing FROM blobs")
        references = dict.fromkeys(CONTENTS, 0)
        for content in self.files.values():
            references[content] += 1
        assert {content: count for content, count, _ in blobs if count} == {
            content: count for content, count in references.items() if count
        }
        if self._select("SELECT 1 FROM recounts"):
            return
        counts = {
            name
            for name, state, draining in self._select("SELECT node_id, state, draining FROM nodes")
            if state == HEALTHY and not draining
        }
        for content, reference_count, missing in blobs:
            good = len(counts & set(held[content]))
            expected = max(REPLICAS - good, 0) if held[content] else REPLICAS + 1
            assert missing == (expected if reference_count else 0), content

    def settle(self) -> None:
        """Quiet: what is under way ends, nodes do their work, and nothing is left that nobody needs."""
        for upload in self.uploads:
            self.state.apply(commands.TerminateUpload(caller=ADMIN, file_uuid=upload.name))
        self.uploads = []
        while self.on_their_way:
            self.arrive(0)
            self.check()
        self.remove_dead(0)
        for _ in range(ROUNDS_MAX):
            self.state.at_ms += QUARANTINE_MS
            self._work()
        rows = self._rows()
        assert [row for row in rows if row[2] is not None] == []
        assert self._select("SELECT sha256 FROM blobs WHERE reference_count = 0") == []
        for content in CONTENTS:
            assert len([row for row in rows if row[0] == content]) <= REPLICAS, f"too many hold {content}"
        for node in self.nodes:
            assert sorted(node.disk) == [row[0] for row in rows if row[1] == node.name]
            assert node.quarantine == {}

    def _work(self) -> None:
        self.collect(0)
        self.recount(1)
        self.trim(1)
        for number, node in enumerate(self.nodes):
            if self._states().get(node.name) != HEALTHY:  # it has compared, and is healthy by the next round
                self.mark(number)
            self.compare(number)
            self.serve(number)
            while node.deletions and node.round is None:
                self.delete_late(number)
            while self.on_their_way:
                self.arrive(0)
            self.check()

    def _node(self, number: int) -> Node:
        return self.nodes[number % len(self.nodes)]

    def _affirm(self, node: Node, content: str) -> None:
        """The node says that it holds the content, and now it does."""
        if content not in node.disk:
            node.disk[content] = self.state.at_ms
            self.damaged.discard((node.name, content))
        node.pins[content] = self.state.at_ms + PIN_MS
        node.marks[content] = node.marks.get(content, 0) + 1

    def _is_pinned(self, node: Node, content: str) -> bool:
        if not self.has_pins:
            return False
        finished = any(
            upload.content == content and upload.seen[:1] == [node.name] for upload in self.uploads
        )
        return finished or node.pins.get(content, 0) > self.state.at_ms

    def _report_of(self, node: Node, round: Round) -> commands.ReportDropped:  # noqa: A002
        return commands.ReportDropped(
            node_id=node.name, as_of=round.as_of, dropped=round.dropped, spared=round.spared
        )

    def _note_lost(self, command: commands.AnyCommand) -> None:
        if isinstance(command, commands.ReportLost):
            self.damaged -= {(command.node_id, content) for content in command.sha256s}

    def _states(self) -> dict[str, str]:
        return dict(self._select("SELECT node_id, state FROM nodes"))

    def _rows(self) -> list[Any]:
        return self._select("SELECT sha256, node_id, doomed_at FROM blob_replicas ORDER BY 1, 2")

    def _select(self, statement: str) -> list[Any]:
        return self.db.execute(statement).fetchall()
