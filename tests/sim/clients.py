"""Simulated clients: they write and read registers, and retry as the product's client does.

A register is the project name of a file. A write carries a session and a sequence number, the same in every
try, and may be tried again while an earlier try is still on its way. What came of each operation goes into a
history, which must be linearizable.
"""

import random
from typing import TYPE_CHECKING

import msgspec

from coordinator.raft.core import NotLeader
from metadata.model.records import ProjectFileRecord
from metadata.protocol.commands import AnyCommand, Envelope, Reply, UpdateProjectFile, encode_envelope
from metadata.protocol.queries import GetProjectFile
from tests.history import Operation
from tests.sim.genesis import ADMIN, AT_MS, KEYS, PROBE_KEY, create

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

TRIES_MAX = 12  # after which a client gives up without knowing what became of its write
TWICE_SHARE = 0.1  # of tries that come twice, the copy maybe long after the client went on
LATE_MAX = 3000  # of such a copy
CREATE_SHARE = 0.1  # of writes that bring a new register into being
_reply_decoder = msgspec.msgpack.Decoder(Reply)
_record_decoder = msgspec.msgpack.Decoder(ProjectFileRecord)


class Try:
    """One arrival of an operation at one machine: what the product calls a waiter."""

    __slots__ = ("client", "floor", "is_over", "machine", "number")

    def __init__(self, client: "Client", machine: "Machine", number: int) -> None:
        self.client = client
        self.machine = machine
        self.number = number  # of the operation that it belongs to
        self.floor = client.world.checkers.committed
        self.is_over = False

    def done(self) -> bool:
        return self.is_over

    def set_result(self, result: bytes, /) -> None:
        self.is_over = True
        self.client.served(self, result)

    def set_exception(self, exception: BaseException, /) -> None:
        self.is_over = True
        leader = exception.leader_id if isinstance(exception, NotLeader) else ""
        self.client.world.after_delay(lambda: self.client.failed(self, leader))


class Client:
    """One process that does one operation after another."""

    def __init__(self, world: "World", name: str, session: int, rand: random.Random) -> None:
        self.world = world
        self.name = name
        self.session = session
        self.rand = rand
        self.number = 0  # of the operation under way; its sequence number too
        self.is_busy = False
        self.operations: list[Operation] = []
        self._leader = ""
        self._tries = 0
        self._key = ""
        self._value = ""
        self._data = b""  # of a write; empty for a read
        self._called_at = 0

    def wake(self) -> None:
        """Begins the next operation, if the last one is over."""
        if self.is_busy or self.world.is_calm:
            return
        self.number += 1
        self.is_busy = True
        self._tries = 0
        self._called_at = self.world.steps
        self._value = f"{self.name}.{self.number}"
        if self.rand.random() < self.world.weather.read_share:
            self._key, self._data = self.rand.choice(self.world.keys), b""
        else:
            self._data = self._write()
        self._try()

    def probe(self) -> None:
        """In the calm, without a session: one more write, that must be done."""
        self.number += 1
        self.is_busy = True
        self._tries = 0
        self._key, self._value = PROBE_KEY, f"{self.name}.{self.number}"
        command = UpdateProjectFile(caller=ADMIN, file_uuid=self._key, project_name=self._value)
        self._data = encode_envelope(Envelope(0, 0, 0, AT_MS + self.world.now, command))
        self._try()

    def _write(self) -> bytes:
        if self.rand.random() < CREATE_SHARE:
            self._key = f"new-{self.name}.{self.number}"
            self.world.keys.append(self._key)
            command: AnyCommand = create(self._key, self._value)
        else:
            self._key = self.rand.choice(self.world.keys if self.rand.random() < 0.2 else KEYS)
            command = UpdateProjectFile(caller=ADMIN, file_uuid=self._key, project_name=self._value)
        at_ms = AT_MS + self.world.now
        return encode_envelope(Envelope(self.session, self.number, self.number, at_ms, command))

    def _try(self) -> None:
        """Sends the operation to a machine; a read to any, a write to the leader as far as it is known."""
        self._tries += 1
        number, tries, data = self.number, self._tries, self._data
        name = self._leader if self._leader and self._data else self.rand.choice(self.world.names_up_or_not())
        machine = self.world.machines[name]
        self.world.after_delay(lambda: self._arrive(machine, number, data))
        if self.rand.random() < TWICE_SHARE:
            self.world.after(self.rand.randint(1, LATE_MAX), lambda: self._arrive(machine, number, data))
        self.world.after(self.world.weather.patience, lambda: self._lose_patience(number, tries))

    def _arrive(self, machine: "Machine", number: int, data: bytes) -> None:
        """A write arrives even when its client has given it up meanwhile."""
        if not machine.is_up or not (data or number == self.number):
            return
        if self.world.is_paused(machine):
            self.world.after(
                machine.paused_until - self.world.now, lambda: self._arrive(machine, number, data)
            )
            return
        attempt = Try(self, machine, number)
        if data:
            machine.propose(data, attempt)
        else:
            machine.read(attempt)

    def served(self, attempt: Try, result: bytes) -> None:
        """At the machine: the command was applied, or the state may be read; the answer leaves."""
        machine, world = attempt.machine, self.world
        if result:
            world.after_delay(lambda: self._answered(attempt, result))
            return
        if attempt.number != self.number:
            return
        world.checkers.read_served(machine, attempt.floor)
        found = machine.store.answer(
            GetProjectFile(caller=ADMIN, file_uuid=self._key), at_ms=AT_MS + world.now
        )
        world.after_delay(lambda: self._answered(attempt, found))

    def _answered(self, attempt: Try, result: bytes) -> None:
        if attempt.number != self.number or not self.is_busy:
            return
        self._leader = attempt.machine.name
        reply = _reply_decoder.decode(result)
        if not self._data:
            self._end(value_of(reply), "ok")
        elif not reply.refusal:
            self.world.checkers.acknowledged(self._data)
            self._end(self._value, "ok")
        elif reply.refusal in ("not_found", "conflict"):
            self._end(self._value, "failed")
        else:
            self.world.fail(f"{self.name} is told {reply.refusal}: {reply.details}")

    def failed(self, attempt: Try, leader: str) -> None:
        """This try came to nothing, or nothing is known of it: the same again, elsewhere."""
        if attempt.number != self.number or not self.is_busy:
            return
        self._leader = leader if leader in self.world.machines else ""
        number = self.number
        self.world.after(self.rand.randint(1, 50), lambda: self._again(number))

    def _lose_patience(self, number: int, tries: int) -> None:
        if number == self.number and tries == self._tries and self.is_busy:
            self._leader = ""
            self._again(number)

    def _again(self, number: int) -> None:
        if number != self.number or not self.is_busy:
            return
        if self._tries >= TRIES_MAX:
            self._end(None if not self._data else self._value, "unknown")
        else:
            self._try()

    def give_up(self) -> None:
        """The run ends."""
        if self.is_busy:
            self._end(None if not self._data else self._value, "unknown")

    def _end(self, value: str | None, outcome: str) -> None:
        self.is_busy = False
        self.operations.append(
            Operation(
                client=self.name,
                key=self._key,
                kind="write" if self._data else "read",
                value=value,
                called_at=self._called_at,
                returned_at=None if outcome == "unknown" else self.world.steps,
                outcome=outcome,  # type: ignore[arg-type]
            )
        )
        self.world.note(
            lambda: f"{self.name} {'wrote' if self._data else 'read'} {self._key}={value}: {outcome}"
        )
        self.world.after(self.rand.randint(1, self.world.weather.think_max), self.wake)


def value_of(reply: Reply) -> str | None:
    """What a register holds, by the answer to a read; None before it was written."""
    if reply.refusal:
        return None
    return _record_decoder.decode(reply.value).project_name or None
