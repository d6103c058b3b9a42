"""A few machines in lock step: nothing moves but what a scenario lets move, and then all comes to rest.

The machines, the checkers and the product's code are those of the simulator; there is no time, and messages
and disks wait where the scenario holds them back.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from coordinator.raft.messages import Message
from tests.sim import genesis, weather
from tests.sim.checkers import Checkers, Violation
from tests.sim.machine import Machine
from tests.sim.snapshots import Fetch
from tests.sim.world import describe

ROUNDS_MAX = 3000  # of events until all rests; far more than any scenario needs
Link = tuple[str, str]
_Step = tuple[int, Callable[[], None], str]  # epoch of the process, what is done, its name


class Lockstep:
    """Machines, and what waits between them. Implements `machine.Surroundings`."""

    def __init__(self, seed: int) -> None:
        self.rand = random.Random(seed)
        self.checkers = Checkers()
        self.weather = replace(
            weather.draw(self.rand, voters=3),
            trailing_entries=0,
            append_bytes_max=8192,
            inflight_messages_max=16,
            inflight_bytes_max=8192,
            committed_bytes_max=8192,
            applying_bytes_max=8192,
            segment_bytes=600,
            chunk_bytes=100_000,
        )
        self.machines: dict[str, Machine] = {}
        self.journal: list[str] = []
        self._blocks: dict[str, list[_Step]] = {}  # what each machine's disk or state machine has to do
        self._stalled: set[str] = set()
        self._network: list[Message] = []
        self._parts: list[Callable[[], None]] = []
        self._holds_parts = False
        self._kept: dict[Link, list[Message]] = {}
        self._held: dict[Link, list[Message]] = {}
        self._cut: set[str] = set()
        self._dies: dict[str, tuple[str, bool]] = {}

    def add(self, name: str, begun: genesis.Genesis | None) -> Machine:
        """A new machine, down."""
        self._blocks[name] = []
        machine = self.machines[name] = Machine(name, self, self.weather, self.rand, begun)
        return machine

    # What machines need: see `machine.Surroundings`

    def send(self, source: str, messages: Sequence[Message]) -> None:
        self._network += messages

    def later(self, machine: Machine, step: Callable[[], None], name: str) -> None:
        self._blocks[machine.name].append((machine.epoch, step, name))

    def ask_chunk(self, fetch: Fetch) -> None:
        offset = fetch.offset

        def answer() -> None:
            source, here = self.machines[fetch.source], fetch.machine.name
            if source.is_up and not {source.name, here} & self._cut:
                fetch.came(offset, source.snapshots.part(fetch.meta, offset, self.weather.chunk_bytes))

        self._parts.append(answer)

    def dies_at(self, machine: Machine, boundary: str) -> bool:
        if self._dies.get(machine.name, ("", False))[0] != boundary:
            return False
        machine.weather = replace(self.weather, power_share=float(self._dies.pop(machine.name)[1]))
        return True

    def note(self, text: Callable[[], str]) -> None:
        self.journal.append("        " + text())

    # Coming to rest

    def settle(self) -> None:
        """Until nothing moves that is not held back."""
        for _ in range(ROUNDS_MAX):
            if not (self._deliver() or self._fetch() or self._work()):
                return
        raise Violation("the group never comes to rest")

    def _deliver(self) -> bool:
        messages, self._network = self._network, []
        for message in messages:
            link = (message.source, message.target)
            held = next((waiting for known, waiting in self._held.items() if covers(known, link)), None)
            if held is not None:
                held.append(message)
            elif not {message.source, message.target} & self._cut and message.target in self.machines:
                self._arrive(message)
        return bool(messages)

    def _arrive(self, message: Message) -> None:
        machine = self.machines[message.target]
        if (message.source, message.target) in self._kept:
            self._kept[message.source, message.target].append(message)
        self.note(lambda: describe(message) + ("" if machine.is_up else " (which is down)"))
        machine.receive(message)

    def _fetch(self) -> bool:
        if self._holds_parts:
            return False
        parts, self._parts = self._parts, []
        for answer in parts:
            answer()
        return bool(parts)

    def _work(self) -> bool:
        moved = [self._step(name) for name in self.machines if name not in self._stalled]
        return any(moved)

    def _step(self, name: str) -> bool:
        if not self._blocks[name]:
            return False
        epoch, step, what = self._blocks[name].pop(0)
        if self.machines[name].epoch == epoch:
            self.note(lambda: f"{name} {what}")
            step()
        return True


def link_of(message: Message) -> Link:
    """Whence and whither."""
    return message.source, message.target


def covers(pattern: Link, link: Link) -> bool:
    """Whether a pattern, in which `*` is everyone, means this link."""
    return all(wanted in ("*", found) for wanted, found in zip(pattern, link, strict=True))
