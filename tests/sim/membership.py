"""The administrator of the simulated cluster: members come and go, one at a time, also the leader itself."""

from typing import TYPE_CHECKING

from coordinator.raft.messages import Members
from metadata.model.records import LEARNER, VOTER
from metadata.protocol.commands import Envelope, RecordCoordinators, encode_envelope
from tests.sim.genesis import AT_MS, record_of

if TYPE_CHECKING:
    from tests.sim.machine import Machine
    from tests.sim.world import World

VOTERS_MAX = 5
MACHINES_MAX = 12  # that ever are in one run


class Outcome:
    """What becomes of one change. The administrator looks at the group, not at this."""

    __slots__ = ("is_done", "refusal")

    def __init__(self) -> None:
        self.is_done = False
        self.refusal = ""

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: bytes, /) -> None:
        self.is_done = True

    def set_exception(self, exception: BaseException, /) -> None:
        self.is_done = True
        self.refusal = f"{type(exception).__name__}: {exception}"


class Administrator:
    """Changes the group of the simulated cluster now and then."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def act(self) -> None:
        """Asks whoever seems to lead for the next change."""
        world = self._world
        world.after_about(world.weather.membership_every, self.act)
        leader = world.checkers.leader_of(world.machines)
        if world.is_calm or leader is None or leader.member is None:
            return
        members = self._next(leader, leader.member.members)
        if members is not None:
            world.note(lambda: f"{leader.name} is asked to make the group {members}")
            world.faults["membership change asked for"] += 1
            leader.propose_membership(members, payload(members, at_ms=AT_MS + world.now), Outcome())

    def _next(self, leader: "Machine", members: Members) -> Members | None:
        rand = self._world.rand
        voters, learners = members.voters, members.learners
        kind = rand.choice(("grow", "grow", "shrink", "shrink leader"))
        if kind == "grow" and learners:
            promoted = rand.choice(learners)
            if self._is_caught_up(leader, promoted) or rand.random() < 0.1:
                return changed(voters=(*voters, promoted), learners=without(learners, promoted))
            return None
        if kind == "grow" and len(voters) < VOTERS_MAX and len(self._world.machines) < MACHINES_MAX:
            return changed(voters=voters, learners=(*learners, self._new_machine(members)))
        if kind == "shrink" and learners and rand.random() < 0.3:
            return changed(voters=voters, learners=without(learners, rand.choice(learners)))
        if len(voters) > 1:
            removed = leader.name if kind == "shrink leader" else rand.choice(voters)
            return changed(voters=without(voters, removed), learners=learners)
        return None

    def _is_caught_up(self, leader: "Machine", learner: str) -> bool:
        assert leader.member is not None, "a leader runs"
        status = leader.member.status()
        progress = status.progress.get(learner)
        return progress is not None and progress.match >= status.commit - 5

    def _new_machine(self, members: Members) -> str:
        """A machine with an empty disk comes up, and waits to be let in."""
        world = self._world
        name = f"m{len(world.machines)}"
        machine = world.add_machine(name, None)
        machine.introduction = members
        machine.start()
        return name


def changed(*, voters: tuple[str, ...], learners: tuple[str, ...]) -> Members:
    """A membership with each list sorted."""
    return Members(tuple(sorted(voters)), tuple(sorted(learners)))


def without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    """The others."""
    return tuple(each for each in names if each != name)


def payload(members: Members, *, at_ms: int) -> bytes:
    """What the state machine is told of a change."""
    records = [record_of(name, VOTER) for name in members.voters]
    records += [record_of(name, LEARNER) for name in members.learners]
    return encode_envelope(Envelope(0, 0, 0, at_ms, RecordCoordinators(coordinators=records)))
