"""One seed's world: a clock, an order of events, machines, a network, clients, and what goes wrong.

Everything random comes from one `random.Random(seed)`, so a seed is a run. A step is one event: a tick of a
machine's clock, a message or a part of a snapshot that arrives, one blocking step of a turn, or something
that a client does. After a storm comes a calm, in which all must agree.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence

from coordinator.raft.messages import Message, Reluctance
from tests import history
from tests.sim import genesis, weather
from tests.sim.checkers import Checkers, Violation
from tests.sim.clients import Client
from tests.sim.machine import Machine
from tests.sim.membership import Administrator
from tests.sim.network import Network
from tests.sim.snapshots import Fetch
from tests.sim.weather import NEVER, TICK, Weather

STEPS = 12_000  # of the storm
CALM_STEPS_MAX = 30_000
EVENTS_MAX = 20_000  # on their way; a group that sends without end is a failure
BOUNDS_EVERY = 8  # ticks of a machine
_Event = tuple[int, int, Callable[[], None]]


class World:
    """One run. `run` raises Violation, or returns with everything checked."""

    def __init__(
        self, seed: int, *, steps: int = STEPS, voters: int | None = None, has_membership: bool | None = None
    ) -> None:
        self.seed = seed
        self.rand = random.Random(seed)
        self.weather: Weather = weather.draw(self.rand, voters=voters, has_membership=has_membership)
        self.steps = 0
        self.now = 0
        self.is_calm = False
        self.faults: Counter[str] = Counter()
        self.journal: Callable[[str], None] | None = None
        self.checkers = Checkers()
        self.network = Network(self.weather, self.rand)
        self._steps_of_storm = steps
        self._events: list[_Event] = []
        self._events_made = 0
        self.keys = list(genesis.KEYS)
        names = tuple(f"m{number}" for number in range(self.weather.voters))
        self.genesis = genesis.begin(names)
        self.machines: dict[str, Machine] = {}
        for name in names:
            self.add_machine(name, self.genesis)
        self.clients = [
            Client(self, f"c{number}", self.genesis.sessions[number], self.rand)
            for number in range(self.weather.clients)
        ]
        self.administrator = Administrator(self)
        # Dice of its own: other faults come as they came before there was this one.
        self._losses = random.Random(-1 - seed)
        may_lose = self.weather.membership_every == NEVER and self.weather.voters >= 3
        self._loss_share = self._losses.choice((0.0, 0.1, 0.5)) if may_lose else 0.0

    # The clock

    def after(self, delay: int, step: Callable[[], None]) -> None:
        """`step` is an event, `delay` units of time from now."""
        self._events_made += 1
        heapq.heappush(self._events, (self.now + delay, self._events_made, step))

    def after_delay(self, step: Callable[[], None]) -> None:
        """The same after a time on the network, unless it gets lost there."""
        for delay in self.network.delays()[:1]:
            self.after(delay, step)

    def after_about(self, mean: int, step: Callable[[], None]) -> None:
        """The same after a random time with this mean; not at all if that is NEVER."""
        if mean != NEVER:
            self.after(1 + int(self.rand.expovariate(1 / mean)), step)

    def note(self, text: Callable[[], str]) -> None:
        """A line for the journal, if one is kept."""
        if self.journal is not None:
            self.journal(f"{self.steps:7} {self.now:8}  {text()}")

    def fail(self, what: str) -> None:
        """Something that must not be."""
        raise Violation(what)

    # A run

    def run(self) -> "World":
        """Storm and calm; then the history of all clients is checked."""
        for machine in list(self.machines.values()):
            self._boot(machine)
        for client in self.clients:
            self.after(self.rand.randint(1, 200), client.wake)
        self.after_about(self.weather.crash_every, self._crash)
        self.after_about(self.weather.partition_every, self._part)
        self.after_about(self.weather.pause_every, self._pause)
        self.after_about(self.weather.transfer_every, self._transfer)
        self.after_about(self.weather.membership_every, self.administrator.act)
        self._work(self._steps_of_storm)
        self._calm_down()
        self._check_history()
        return self

    def _work(self, steps: int) -> None:
        events, until = self._events, self.steps + steps
        pop = heapq.heappop
        while self.steps < until:
            self.now, _, step = pop(events)
            self.steps += 1
            step()
        if len(events) > EVENTS_MAX:
            self.fail(f"{len(events)} messages are under way")

    def _calm_down(self) -> None:
        """Everything works again: there must be a leader soon, and all members get as far as it."""
        self.note(lambda: "now all is calm")
        self.is_calm = True
        self.network.calm()
        for machine in self.machines.values():
            machine.paused_until = 0
            if not machine.is_up:
                self._boot(machine)
        probe = Client(self, "probe", 0, self.rand)
        for _ in range(CALM_STEPS_MAX // 100):
            self._work(100)
            if not probe.operations and not probe.is_busy and self.checkers.leader_of(self.machines):
                probe.probe()
            if probe.operations and probe.operations[-1].outcome == "ok" and self._agree():
                return
            if not probe.is_busy:
                probe.operations.clear()
        reached = {
            name: machine.member.applied_index for name, machine in self.machines.items() if machine.member
        }
        self.fail(f"no progress in the calm: applied {reached}, committed {self.checkers.committed}")

    def _agree(self) -> bool:
        """Whether all members of the group have the same state; to differ at one index is a failure."""
        leader = self.checkers.leader_of(self.machines)
        if leader is None or leader.member is None:
            return False
        members = leader.member.members
        group = [self.machines[name] for name in (*members.voters, *members.learners)]
        reached = {machine.member.applied_index for machine in group if machine.member}
        if reached != {self.checkers.committed} or any(machine.is_applying for machine in group):
            return False
        dumps = {machine.name: machine.database.dump() for machine in group}
        for name, dump in dumps.items():
            if dump != dumps[leader.name]:
                self.fail(f"{name} and {leader.name} differ in their state at {self.checkers.committed}")
            self.checkers.same_members(self.machines[name], members)
        return True

    def _check_history(self) -> None:
        for client in self.clients:
            client.give_up()
        found = history.check([operation for client in self.clients for operation in client.operations])
        if found is not None:
            self.fail(f"the history is not linearizable: {found}")

    # Machines

    def add_machine(self, name: str, begun: genesis.Genesis | None) -> Machine:
        """A new machine, down; with an empty disk unless `begun`."""
        machine = Machine(name, self, self.weather, self.rand, begun)
        machine.clock_rate = 1 + self.weather.clock_drift * (2 * self.rand.random() - 1)
        machine.sleeps = len(self.machines) % 2 == 0
        self.machines[name] = machine
        self.after(self.rand.randint(1, TICK), lambda: self._tick(machine, 0))
        self._keep_house(machine)
        return machine

    def _boot(self, machine: Machine) -> None:
        if not machine.is_up:
            self.note(lambda: f"{machine.name} starts")
            machine.start()

    def _tick(self, machine: Machine, count: int) -> None:
        self.after(int(TICK * machine.clock_rate), lambda: self._tick(machine, count + 1))
        if self.is_paused(machine):
            machine.pause()
        elif machine.member is not None:
            machine.tick()
            if count % BOUNDS_EVERY == 0 and machine.member is not None:
                self.checkers.bounds(machine)

    def _keep_house(self, machine: Machine) -> None:
        def step() -> None:
            if not self.is_paused(machine):
                machine.keep_house()
            self._keep_house(machine)

        self.after_about(self.weather.housekeeping_every, step)

    def is_paused(self, machine: Machine) -> bool:
        """Whether its process is stopped."""
        return machine.paused_until > self.now

    def names_up_or_not(self) -> list[str]:
        """Every machine that there is."""
        return list(self.machines)

    # What machines need

    def send(self, source: str, messages: Sequence[Message]) -> None:
        """See `machine.Surroundings`."""
        now, events = self.now, self._events
        for message in messages:
            for delay in self.network.delays():
                self._events_made += 1
                event = (now + delay, self._events_made, lambda message=message: self._deliver(message))
                heapq.heappush(events, event)

    def _deliver(self, message: Message) -> None:
        if self.network.cut and self.network.is_cut(message.source, message.target):
            self.faults["messages on a cut link"] += 1
            return
        machine = self.machines.get(message.target)
        if machine is None or machine.member is None:
            return
        if machine.paused_until > self.now:
            self.after(machine.paused_until - self.now, lambda: self._deliver(message))
            return
        if self.journal is not None:
            self.note(lambda: describe(message))
        machine.receive(message)

    def later(self, machine: Machine, step: Callable[[], None], name: str) -> None:
        """See `machine.Surroundings`."""
        epoch = machine.epoch

        def work() -> None:
            if machine.epoch != epoch:
                return
            if machine.paused_until > self.now:
                self.after(machine.paused_until - self.now, work)
                return
            self.note(lambda: f"{machine.name} {name}")
            step()

        self.after(1 + int(self.rand.random() * self.weather.disk_max), work)

    def ask_chunk(self, fetch: Fetch) -> None:
        """See `machine.Surroundings`. The question and the answer travel like messages."""
        offset, size_bytes = fetch.offset, self.weather.chunk_bytes
        here, there = fetch.machine.name, fetch.source

        def answer() -> None:
            source = self.machines[there]
            if not source.is_up or self.is_paused(source) or self.network.is_cut(here, there):
                return
            found = source.snapshots.part(fetch.meta, offset, size_bytes)
            self.after_delay(lambda: None if self.network.is_cut(there, here) else fetch.came(offset, found))

        self.after_delay(answer)

    def dies_at(self, machine: Machine, boundary: str) -> bool:
        """See `machine.Surroundings`."""
        if (
            self.is_calm
            or not self.weather.boundary_crash
            or self.rand.random() >= self.weather.boundary_crash
        ):
            return False
        self.faults[f"crash {boundary}"] += 1
        self._restart_later(machine)
        return True

    # What goes wrong

    def _restart_later(self, machine: Machine) -> None:
        self.after(self.rand.randint(1, self.weather.down_max), lambda: self._boot(machine))

    def _crash(self) -> None:
        self.after_about(self.weather.crash_every, self._crash)
        if self.is_calm:
            return
        everyone = [machine for machine in self.machines.values() if machine.is_up]
        victims = everyone if self.rand.random() < 0.1 else everyone and [self.rand.choice(everyone)]
        for machine in victims:
            power = self.rand.random() < self.weather.power_share
            self.faults["crash with power loss" if power else "crash of the process"] += 1
            machine.crash(power=power)
            self._maybe_lose_end(machine)
            self._restart_later(machine)

    def _maybe_lose_end(self, machine: Machine) -> None:
        """One at a time: what two have forgotten may be all that there was."""
        if self._losses.random() >= self._loss_share or machine.is_up:
            return
        if not any(each.is_recovering for each in self.machines.values()) and machine.lose_end(self._losses):
            self.faults["loss of the end of a log"] += 1
            self.note(lambda: f"{machine.name} loses the end of its log")

    def _part(self) -> None:
        self.after_about(self.weather.partition_every, self._part)
        if self.is_calm or len(self.machines) < 2:
            return
        what = self.network.part(self.machines)
        self.faults[f"partition {what.split(':')[0]}"] += 1
        self.note(lambda: f"the network is cut, {what}")
        self.after_about(3000, self._heal)

    def _heal(self) -> None:
        self.note(lambda: "the network heals")
        self.network.heal()

    def _pause(self) -> None:
        self.after_about(self.weather.pause_every, self._pause)
        if self.is_calm:
            return
        machine = self.rand.choice(list(self.machines.values()))
        machine.paused_until = self.now + self.rand.randint(TICK, 40 * TICK)
        self.faults["pause of the process"] += 1
        self.note(lambda: f"{machine.name} is stopped until {machine.paused_until}")

    def _transfer(self) -> None:
        self.after_about(self.weather.transfer_every, self._transfer)
        leader = self.checkers.leader_of(self.machines)
        if self.is_calm or leader is None or leader.member is None:
            return
        for machine in self.machines.values():  # whose disks are full and whose clocks are wrong changes too
            if machine.member is not None:
                machine.member.reluctance = self.rand.choice(list(Reluctance))
        self.note(lambda: f"{leader.name} is asked to hand over the lead")
        self.faults["transfer of the lead"] += 1
        leader.member.transfer_leader()
        leader.turn()


def describe(message: Message) -> str:
    """A message in one line."""
    facts = [f"{message.source} > {message.target} {message.kind.name} term {message.term}"]
    facts += [f"at {message.log_index}/{message.log_term}"] if message.log_index else []
    facts += [f"entries {message.entries[0].index}..{message.entries[-1].index}"] if message.entries else []
    facts += [f"commit {message.commit}"] if message.commit else []
    facts += [f"round {message.round}"] if message.round else []
    facts += ["refused"] if message.reject else []
    facts += ["by transfer"] if message.transfer else []
    return ", ".join(facts)
