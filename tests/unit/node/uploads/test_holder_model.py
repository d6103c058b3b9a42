"""The rules of the chain against the real state machine: what was acknowledged stays on the write quorum.

The nodes of the model follow `node/uploads/holder.py`, `node/uploads/chain_link.py`,
`node/uploads/succession.py` and `node/uploads/upload_copies.py` step by step, the leader
`coordinator/reconcile/upload_moves.py`; commands may come late, in any order, or never; links reach any node;
whoever was a holder may act on what it knew. A node that is in no placement any more may leave, and come back
with an empty disk.
"""

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import msgspec

from metadata.protocol import commands, queries
from tests.unit.state import ADMIN, Refusal, State, create

NAMES = ("n1", "n2", "n3")
WRITE_QUORUM = 2
WEIGHTS = {
    "open": 3,
    "write": 5,
    "link": 6,
    "chain": 3,
    "report": 5,
    "deliver": 2,
    "rewind": 1,
    "take_over": 1,
    "move": 1,
    "leave": 2,
}
WALKS = 200
WALK_STEPS = 80
HOLDER_SHARE = 0.75  # of the steps that the present holder does; others act on what they knew
LATE_SHARE = 0.2


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def agreed(sender: "Node", member: "Node", record: Any, proposed: int) -> bool:
    """What both have is the same afterwards; False while the sender has less and cannot tell.

    `record`, `proposed`: what the holder knows of the log, and what it has said to it.
    """
    acknowledged = record["offset_bytes"]
    proposed = max(acknowledged, proposed)
    for limit in (max(len(sender.content), proposed), proposed, acknowledged):
        member.content = member.content[:limit]
        if len(member.content) > len(sender.content):
            return False
        if sender.content.startswith(member.content):
            return True
        if len(member.content) <= acknowledged:
            break
    member.content = b""
    return True


def receive(sender: "Node", member: "Node", number: int) -> None:
    more = number % (len(sender.content) - len(member.content) + 1)
    member.content = sender.content[: len(member.content) + more]


@dataclass
class Node:
    """A node's file and epoch, and what it believes as a holder."""

    content: bytes = b""
    epoch: int = 0
    record: Any = None  # of the log, when it last opened the upload as its holder
    proposed: int = 0


class Model:
    def __init__(self, state: State, file_uuid: str) -> None:
        self.state, self.file_uuid = state, file_uuid
        state.done(create(ADMIN, file_uuid))
        self.nodes = {name: Node() for name in NAMES}
        self.late: list[Any] = []
        self.linked: dict[str, set[str]] = {name: set() for name in NAMES}
        self.letter = 0
        self.last = self.log()

    def log(self) -> Any:
        return self.state.ask(queries.GetUpload(caller=ADMIN, file_uuid=self.file_uuid))

    def step(self, action: str, name: str, other: str, number: int, is_late: bool) -> None:
        getattr(self, action)(name, other, number, is_late)
        record = self.log()
        offset, sha256 = record["offset_bytes"], record["prefix_sha256"]
        having = [name for name in record["placement"] if self._has(name, offset, sha256)]
        assert offset == 0 or len(having) >= WRITE_QUORUM, action
        assert record["epoch"] > self.last["epoch"] or offset >= self.last["offset_bytes"], action
        self.last = record

    def _has(self, name: str, offset: int, sha256: str) -> bool:
        return not offset or sha256_of(self.nodes[name].content[:offset]) == sha256

    def open(self, name: str, _other: str, _number: int, _is_late: bool) -> None:
        node, record = self.nodes[name], self.log()
        if record["placement"][0] != name:
            return
        if node.epoch != record["epoch"]:
            node.content = node.content[: record["offset_bytes"]]
            assert sha256_of(node.content) == record["prefix_sha256"] or not record["offset_bytes"]
            node.epoch = record["epoch"]
        assert len(node.content) >= record["offset_bytes"]
        node.record, node.proposed = record, len(node.content)  # an earlier report may still be on its way
        self.linked[name] = set()

    def write(self, name: str, _other: str, number: int, _is_late: bool) -> None:
        node = self.nodes[name]
        if node.record is None or node.epoch != node.record["epoch"]:
            return
        self.letter += 1  # never the same bytes again
        node.content += bytes([self.letter % 256, self.letter // 256]) * (1 + number % 3)

    def link(self, name: str, other: str, number: int, _is_late: bool) -> None:
        holder, member = self.nodes[name], self.nodes[other]
        if name == other or holder.record is None or holder.epoch < member.epoch:
            return
        if holder.epoch != holder.record["epoch"]:
            return
        if member.epoch < holder.epoch:
            self.linked[other] = set()
            member.record = None  # its own requests are ended by the lock
        member.epoch = holder.epoch
        if agreed(holder, member, holder.record, holder.proposed):
            receive(holder, member, number)
            self.linked[name].add(other)

    def chain(self, name: str, other: str, number: int, _is_late: bool) -> None:
        """The holder links to one member, and that one, whatever it has, on to the third."""
        self.link(name, other, number, False)
        holder, middle = self.nodes[name], self.nodes[other]
        if other not in self.linked[name] or holder.record is None or holder.epoch != holder.record["epoch"]:
            return
        third = next(node for node in NAMES if node not in (name, other))
        last = self.nodes[third]
        if middle.epoch != holder.epoch or last.epoch > middle.epoch:
            return
        if last.epoch < middle.epoch:
            self.linked[third] = set()
            last.record = None
        last.epoch = middle.epoch
        if agreed(middle, last, holder.record, holder.proposed):
            receive(middle, last, number)
            self.linked[name].add(third)

    def report(self, name: str, _other: str, _number: int, is_late: bool) -> None:
        node = self.nodes[name]
        if node.record is None:
            return
        durable = [len(self.nodes[other].content) for other in self.linked[name]]
        offset = min(max(durable, default=0), len(node.content))
        if offset < node.record["offset_bytes"] or not self._follow(name, offset):
            return
        node.proposed = max(node.proposed, offset)
        command = self._of_holder(commands.RecordProgress, name, offset)
        having = [other for other in sorted(self.linked[name]) if self._follows(name, other, offset)]
        present = node.record["placement"]
        if not set(having) <= set(present):
            rest = [other for other in present[1:] if other not in having]
            command = msgspec.structs.replace(command, placement=[name, *having, *rest])
        self._propose(node, command, is_late)

    def _of_holder(
        self, command: type[commands.RecordProgress | commands.RewindUpload], name: str, offset: int
    ) -> commands.RecordProgress | commands.RewindUpload:
        """What a node that takes itself for the holder says of its bytes up to `offset`."""
        node = self.nodes[name]
        assert node.record is not None
        return command(
            caller=ADMIN,
            file_uuid=self.file_uuid,
            node_id=name,
            epoch=node.record["epoch"],
            offset_bytes=offset,
            prefix_sha256=sha256_of(node.content[:offset]),
        )

    def _follow(self, name: str, offset: int) -> bool:
        """Whether a member that is linked still follows this holder, as its answers say."""
        return any(self._follows(name, other, offset) for other in self.linked[name])

    def _follows(self, name: str, other: str, offset: int) -> bool:
        member = self.nodes[other]
        return member.epoch == self.nodes[name].epoch and len(member.content) >= offset

    def rewind(self, name: str, _other: str, number: int, is_late: bool) -> None:
        node = self.nodes[name]
        if node.record is None or not node.content:
            return
        offset = number % len(node.content)
        recorded = node.record["offset_bytes"]
        if offset < max(recorded, node.proposed):
            offset = min(offset, recorded)
            if not self._propose(node, self._of_holder(commands.RewindUpload, name, offset), is_late):
                node.record = None  # no answer: the request ends, and nothing is cut
                return
            node.proposed = offset
        node.content = node.content[:offset]
        node.epoch = node.record["epoch"]
        self.linked[name] = set()

    def take_over(self, _name: str, other: str, _number: int, is_late: bool) -> None:
        record, node = self.log(), self.nodes[other]
        offset = record["offset_bytes"]
        if other == record["placement"][0]:
            return
        if offset and sha256_of(node.content[:offset]) != record["prefix_sha256"]:
            return
        command = commands.TakeOverUpload(
            caller=ADMIN,
            file_uuid=self.file_uuid,
            holder=record["placement"][0],
            successor=other,
            epoch=record["epoch"],
            offset_bytes=offset,
        )
        if is_late:
            self.late.append(command)
        else:
            self.state.apply(command)

    def move(self, name: str, _other: str, _number: int, is_late: bool) -> None:
        """A node drains: the other two get what is acknowledged, and then the log places the upload there."""
        record = self.log()
        offset, sha256 = record["offset_bytes"], record["prefix_sha256"]
        sources = [node for node in NAMES if offset and self._has(node, offset, sha256)]
        others = [node for node in NAMES if node != name]
        if not all(self._is_copied(node, record, sources) for node in others):
            return
        others.sort(key=lambda node: node != record["placement"][0])
        command = commands.PlaceUpload(
            file_uuid=self.file_uuid, epoch=record["epoch"], offset_bytes=offset, placement=others
        )
        if is_late:
            self.late.append(command)
        else:
            self.state.apply(command)

    def leave(self, name: str, _other: str, _number: int, _is_late: bool) -> None:
        if name not in self.log()["placement"]:
            self.nodes[name] = Node()
            self._unlink(name)
            self.linked[name] = set()

    def _is_copied(self, name: str, record: Any, sources: list[str]) -> bool:
        """Whether a node has what is acknowledged; one that writes the upload itself is left alone."""
        node, offset = self.nodes[name], record["offset_bytes"]
        if not offset or name in sources:
            return True
        if node.record is not None or record["epoch"] < node.epoch or not sources:
            return False
        self._unlink(name)  # a link to it is ended by the lock
        node.epoch, node.content = record["epoch"], self.nodes[sources[0]].content[:offset]
        return True

    def _unlink(self, name: str) -> None:
        for linked in self.linked.values():
            linked.discard(name)

    def deliver(self, _name: str, _other: str, number: int, _is_late: bool) -> None:
        if self.late:
            self.state.apply(self.late.pop(number % len(self.late)))

    def _propose(self, node: Node, command: Any, is_late: bool) -> bool:
        """Whether it was taken; one that comes late gets no answer."""
        if is_late:
            self.late.append(command)
            return False
        reply = self.state.apply(command)
        if isinstance(reply, Refusal):
            node.record = None  # overtaken
            return False
        node.record = reply
        return True


def test_acknowledged_bytes_are_on_the_write_quorum_whatever_comes_late(state: State) -> None:
    for seed in range(WALKS):
        dice = random.Random(seed)
        model = Model(state, f"f{seed}")
        model.step("open", "n1", "n1", 0, False)
        for number in range(WALK_STEPS):
            action = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            holder = model.log()["placement"][0]
            name = holder if dice.random() < HOLDER_SHARE else dice.choice(NAMES)
            other = dice.choice([other for other in NAMES if other != name])
            try:
                model.step(action, name, other, dice.randrange(50), dice.random() < LATE_SHARE)
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {number}: {error}") from error
