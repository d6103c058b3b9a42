"""Directed scenarios: a few machines in lock step, moved by the lines of a readable text.

The machines, the checkers and the product's code are those of the simulator; only time and network are moved
by hand. After every line everything that is not held back comes to rest. The language, one command a line:

    members a b c           the group; its log begins with a few committed entries. `learners d` adds some.
    dice 20                 the whole text is run so many times, each with other luck in crashes
    new d                   a machine with an empty disk, that was told of the group
    elect a                 the others wait until they have no leader, then a campaigns
    campaign a              a campaigns at once, as after its timeout
    forget a b              they have no leader any more that would keep them from voting
    tick a 5                five ticks of a's clock; `tick all 5` of every clock in turn
    setting append_bytes_max 1    of every machine's Config; stands before `members`
    hold a > b              messages from a to b wait (`*` is everyone); `hold parts`: those of snapshots do
    pass a > b, pass a > b 2    all of them, or the first two, arrive; the link holds on
    release a > b           all arrive, and the link works again; `release parts`
    lose a > b              those that wait are lost, and the link works again
    lose a > b 2            the first two are lost
    keep a > b              what arrives there from now on is remembered
    again a > b 1           the first message that was remembered arrives once more
    vote a > b 7            b is asked by a for its vote in term 7, for the log that a has
    message a > b APPEND term=3 log_index=1 log_term=2 commit=1    arrives, made up
    cut a                   nothing gets to a or from it; `heal a`, or `heal` for all
    stall a                 the disk of a hangs; `resume a`
    step a                  one step of a's disk or state machine, which hangs otherwise
    die a after a write     the next time; `die a power after a write`: it loses power then
    crash a, crash a power  now
    lose_end a              its disk loses the end of its log; it is down
    restart a
    propose a x=1           a client asks a to write; the same text again is a retry
    propose a x=2 next      the same; the client has seen the replies to all its writes before
    read a x as r1          a client asks a
    change a voters a b learners d    an administrator asks a for this group
    transfer a b            a is asked to hand over the lead
    snapshot a, compact a   of its state, of its log
    expect ...              see `_expect_...` below; `expect not ...` is the contrary

Text after `#` is for the reader.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from coordinator.raft.core import NotLeader
from coordinator.raft.messages import Members, Message, MessageKind
from metadata.protocol.commands import Envelope, UpdateProjectFile, encode_envelope
from metadata.protocol.queries import GetProjectFile
from tests.sim import genesis
from tests.sim.checkers import Violation
from tests.sim.clients import _reply_decoder, value_of
from tests.sim.lockstep import Lockstep, covers, link_of
from tests.sim.machine import Machine
from tests.sim.membership import changed, payload

TRANSCRIPTS = Path(__file__).parent / "transcripts"
REGISTERS = dict(zip("xyzw", genesis.KEYS, strict=True))
GENESIS_ENTRIES = len(genesis.begin(("a",)).entries)


class Expectation(AssertionError):
    """What a line expects is not so."""


class Waiting:
    """A client's or an administrator's question, and what came of it."""

    def __init__(self, machine: Machine, floor: int, *, key: str = "") -> None:
        self.machine = machine
        self.floor = floor
        self.key = key  # of a read
        self.state = "pending"
        self.value: str | None = None

    def done(self) -> bool:
        return self.state != "pending"

    def set_result(self, result: bytes, /) -> None:
        self.state = "done"
        if result and _reply_decoder.decode(result).refusal:
            self.state = "refused"
        if self.key:
            checkers = self.machine.surroundings.checkers
            checkers.read_served(self.machine, self.floor)
            query = GetProjectFile(caller=genesis.ADMIN, file_uuid=self.key)
            self.value = value_of(
                _reply_decoder.decode(self.machine.store.answer(query, at_ms=genesis.AT_MS))
            )

    def set_exception(self, exception: BaseException, /) -> None:
        self.state = "not leader" if isinstance(exception, NotLeader) else "refused"


class Scenario(Lockstep):
    """The machines of one text, and who asked them what."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._asked: dict[str, Waiting] = {}
        self._datas: dict[str, bytes] = {}
        self._change: Waiting | None = None

    # Lines

    def run_line(self, line: str) -> None:
        """One command of the text."""
        words = line.split()
        self.journal.append(line)
        handler: Callable[..., None] | None = getattr(self, f"_do_{words[0]}", None)
        assert handler is not None, f"no such command: {line}"
        handler(*words[1:])
        if words[0] != "expect":
            self.settle()

    def _do_members(self, *names: str) -> None:
        voters, learners = list(names), list[str]()
        if "learners" in names:
            at = names.index("learners")
            voters, learners = voters[:at], voters[at + 1 :]
        begun = genesis.begin(tuple(voters))
        for name in voters:
            self.add(name, begun)
        for name in voters:
            self.machines[name].start()
        if learners:
            self._do_elect(voters[0])
        for learner in learners:
            self._do_new(learner)
            self._do_change(voters[0], "voters", *voters, "learners", learner)
            self.settle()

    def _do_new(self, name: str) -> None:
        group = next(machine.member.members for machine in self.machines.values() if machine.member)
        machine = self.add(name, None)
        machine.introduction = group
        machine.start()

    def _do_elect(self, name: str) -> None:
        for _ in range(2):
            for other, machine in self.machines.items():
                if other != name and machine.member is not None and other not in self._cut:
                    self._forget_leader(machine)
            self._network.clear()
            self._do_campaign(name)
            self.settle()
            if self._leads(name):
                return
        raise Expectation(f"{name} is not elected")

    def _do_forget(self, *names: str) -> None:
        for name in names:
            self._forget_leader(self.machines[name])

    def _forget_leader(self, machine: Machine) -> None:
        """As long a wait as makes it answer to candidates; what it sends meanwhile is lost."""
        assert machine.member is not None, "it runs"
        state = machine.member._raft._state
        state.election_elapsed = state.config.election_ticks
        if machine.member.leader == machine.name:
            for _ in range(2 * state.config.election_ticks):
                machine.tick()
                while self._step(machine.name):
                    pass
                self._network.clear()

    def _do_campaign(self, name: str) -> None:
        machine = self.machines[name]
        assert machine.member is not None, f"{name} is down"
        if machine.member.leader != name:
            machine.member._raft.campaign()
            machine.turn()

    def _do_tick(self, name: str, count: str = "1") -> None:
        for _ in range(int(count)):
            for machine in list(self.machines.values()) if name == "all" else [self.machines[name]]:
                machine.tick()
            self.settle()

    def _do_setting(self, name: str, value: str) -> None:
        self.weather = replace(self.weather, **{name: int(value)})

    def _do_hold(self, source: str, _arrow: str = "", target: str = "") -> None:
        if source == "parts":
            self._holds_parts = True
        else:
            self._held.setdefault((source, target), [])

    def _do_pass(self, source: str, _arrow: str, target: str, count: str = "1000") -> None:
        for waiting in self._held.values():
            found = [message for message in waiting if covers((source, target), link_of(message))][
                : int(count)
            ]
            for message in found:
                waiting.remove(message)
                self._arrive(message)

    def _do_release(self, source: str, _arrow: str = "", target: str = "") -> None:
        if source == "parts":
            self._holds_parts = False
        else:
            self._network += self._held.pop((source, target))

    def _do_lose(self, source: str, _arrow: str, target: str, count: str = "") -> None:
        if count:
            del self._held[source, target][: int(count)]
        else:
            del self._held[source, target]

    def _do_keep(self, source: str, _arrow: str, target: str) -> None:
        self._kept[source, target] = []

    def _do_again(self, source: str, _arrow: str, target: str, number: str) -> None:
        self._arrive(self._kept[source, target][int(number) - 1])

    def _do_vote(self, source: str, _arrow: str, target: str, term: str) -> None:
        log = self.machines[source].log
        last = log.last_index()
        asked = Message(MessageKind.VOTE, source, target, int(term), log_index=last, log_term=log.term(last))
        self._arrive(asked)

    def _do_message(self, source: str, _arrow: str, target: str, kind: str, *fields: str) -> None:
        named = dict(field.split("=") for field in fields)
        numbers = {
            name: int(value) + (GENESIS_ENTRIES if name in ("log_index", "commit", "hint_index") else 0)
            for name, value in named.items()
        }
        made_up = Message(MessageKind[kind], source, target, 0)
        self._arrive(msgspec.structs.replace(made_up, **numbers))

    def _do_cut(self, *names: str) -> None:
        self._cut |= set(names)

    def _do_heal(self, *names: str) -> None:
        self._cut -= set(names or self._cut)

    def _do_stall(self, name: str) -> None:
        self._stalled.add(name)

    def _do_resume(self, name: str) -> None:
        self._stalled.discard(name)

    def _do_step(self, name: str) -> None:
        assert self._step(name), f"{name} has nothing to write or apply"

    def _do_die(self, name: str, *boundary: str) -> None:
        power = boundary[0] == "power"
        self._dies[name] = (" ".join(boundary[1:] if power else boundary), power)

    def _do_crash(self, name: str, power: str = "") -> None:
        self.machines[name].crash(power=bool(power))

    def _do_lose_end(self, name: str) -> None:
        assert self.machines[name].lose_end(self.machines[name].rand), f"{name} has nothing to lose"

    def _do_restart(self, name: str) -> None:
        assert not self.machines[name].is_up, f"{name} did not die"
        self.machines[name].weather = self.weather
        self._stalled.discard(name)
        self.machines[name].start()

    def _do_propose(self, name: str, text: str, following: str = "") -> None:
        key, value = text.split("=")
        if text not in self._datas:
            command = UpdateProjectFile(caller=genesis.ADMIN, file_uuid=REGISTERS[key], project_name=value)
            sequence = 1 + len(self._datas)
            acknowledged_below = sequence if following else 0
            envelope = Envelope(2, sequence, acknowledged_below, genesis.AT_MS, command)
            self._datas[text] = encode_envelope(envelope)
        waiting = self._asked[text] = Waiting(self.machines[name], self.checkers.committed)
        self.machines[name].propose(self._datas[text], waiting)

    def _do_read(self, name: str, key: str, _as: str, label: str) -> None:
        waiting = Waiting(self.machines[name], self.checkers.committed, key=REGISTERS[key])
        self._asked[label] = waiting
        self.machines[name].read(waiting)

    def _do_change(self, name: str, *words: str) -> None:
        assert words[0] == "voters", "the voters are named first"
        at = words.index("learners") if "learners" in words else len(words)
        members: Members = changed(voters=words[1:at], learners=words[at + 1 :])
        self._change = Waiting(self.machines[name], 0)
        self.machines[name].propose_membership(members, payload(members, at_ms=genesis.AT_MS), self._change)

    def _do_transfer(self, name: str, target: str) -> None:
        member = self.machines[name].member
        assert member is not None, f"{name} is down"
        member.transfer_leader(target)
        self.machines[name].turn()

    def _do_snapshot(self, name: str) -> None:
        self.machines[name]._take_snapshot()

    def _do_compact(self, name: str) -> None:
        self.machines[name].keep_house()

    # Expectations

    def _do_expect(self, *words: str) -> None:
        wants = words[0] != "not"
        words = words if wants else words[1:]
        check: Callable[..., bool] | None = getattr(self, f"_expect_{words[0]}", None)
        assert check is not None, f"nobody knows how to expect {words[0]}"
        if check(*words[1:]) is not wants:
            raise Expectation(f"expected {'' if wants else 'not '}{' '.join(words)}; {self._facts()}")

    def _facts(self) -> str:
        facts = [f"{text} is {waiting.state} {waiting.value or ''}" for text, waiting in self._asked.items()]
        for name, machine in self.machines.items():
            if machine.member is None:
                facts.append(f"{name} is down")
                continue
            status = machine.member.status()
            facts.append(
                f"{name} is {status.role.value} in term {status.term}, log {self._log(name)},"
                f" commit {status.commit}"
            )
        return "; ".join(facts)

    def _leads(self, name: str) -> bool:
        machine = self.machines[name]
        return machine.member is not None and machine.member.leader == name

    def _log(self, name: str) -> list[int]:
        log = self.machines[name].log
        first = max(log.first_index(), GENESIS_ENTRIES + 1)
        return [log.term(index) for index in range(first, log.last_index() + 1)]

    def _expect_leader(self, name: str) -> bool:
        """It leads."""
        return self._leads(name)

    def _expect_up(self, name: str) -> bool:
        """Its process runs."""
        return self.machines[name].is_up

    def _expect_done(self, text: str) -> bool:
        """A proposal was acknowledged, a read was answered."""
        return self._asked[text].state == "done"

    def _expect_refused(self, text: str) -> bool:
        """A proposal or a read was refused, also by a member that does not lead."""
        return self._asked[text].state in ("refused", "not leader")

    def _expect_recovering(self, name: str) -> bool:
        """It has forgotten promises, and does not vote."""
        member = self.machines[name].member
        return member is not None and member.status().recovering

    def _expect_term(self, name: str, term: str) -> bool:
        """The term that it is in."""
        member = self.machines[name].member
        return member is not None and member.status().term == int(term)

    def _expect_voted(self, name: str, candidate: str, term: str) -> bool:
        """Its vote in this term, as its disk has it."""
        known = self.machines[name].log.hard_state
        return (known.vote, known.term) == (candidate, int(term))

    def _expect_pending(self, text: str) -> bool:
        """Nothing came of it yet."""
        return self._asked[text].state == "pending"

    def _expect_value(self, label: str, value: str) -> bool:
        """A read was answered with this; `-` is nothing."""
        return self._asked[label].state == "done" and self._asked[label].value == (
            None if value == "-" else value
        )

    def _expect_state(self, name: str, text: str) -> bool:
        """A machine's database holds this."""
        key, value = text.split("=")
        query = GetProjectFile(caller=genesis.ADMIN, file_uuid=REGISTERS[key])
        answer = self.machines[name].store.answer(query, at_ms=genesis.AT_MS)
        return value_of(_reply_decoder.decode(answer)) == (None if value == "-" else value)

    def _expect_log(self, name: str, *terms: str) -> bool:
        """The terms of its entries, behind those that every log begins with and those that were compacted."""
        return self._log(name) == [int(term) for term in terms]

    def _expect_commit(self, name: str, count: str) -> bool:
        """So many entries are committed as far as it knows, behind those that every log begins with."""
        member = self.machines[name].member
        return member is not None and member.status().commit - GENESIS_ENTRIES == int(count)

    def _expect_entries(self, name: str, text: str, count: str) -> bool:
        """So often the proposal is in its log."""
        log = self.machines[name].log
        entries = [
            log.entries(index, index + 1, 1)[0] for index in range(log.first_index(), log.last_index() + 1)
        ]
        return sum(entry.data == self._datas[text] for entry in entries) == int(count)

    def _expect_change(self, state: str) -> bool:
        """What became of the last change of the group: done, refused, pending."""
        return self._change is not None and self._change.state == state

    def _expect_voters(self, name: str, *voters: str) -> bool:
        """Whom it takes for the voters."""
        member = self.machines[name].member
        return member is not None and member.members.voters == tuple(sorted(voters))

    def _expect_compacted(self, name: str) -> bool:
        """Its log no longer begins at the beginning."""
        return self.machines[name].log.first_index() > 1

    def _expect_installed(self, count: str) -> bool:
        """So many snapshots were installed."""
        return self.checkers.installs == int(count)


def run_text(text: str) -> None:
    """Runs a scenario; raises Violation or Expectation with the line and what happened."""
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    dice = next((int(line.split()[1]) for line in lines if line.startswith("dice ")), 1)
    for seed in range(dice):
        scenario = Scenario(seed)
        for number, line in enumerate(lines, 1):
            if not line or line.startswith("dice "):
                continue
            try:
                scenario.run_line(line)
            except AssertionError as error:
                tail = "\n".join(scenario.journal[-60:])
                raise Violation(f"line {number}, dice {seed}: {line}: {error}\n{tail}") from error


def names() -> list[str]:
    """All scenarios."""
    return sorted(path.stem for path in TRANSCRIPTS.glob("*.txt"))


def run_named(name: str) -> None:
    """Runs one scenario of the directory."""
    run_text((TRANSCRIPTS / f"{name}.txt").read_text(encoding="utf-8"))
