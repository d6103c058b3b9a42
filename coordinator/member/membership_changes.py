"""The leader's operations on the group of coordinators: add, remove, transfer the lead.

A coordinator is added as a learner and promoted when its log has caught up (Ongaro 2014, 4.2.1); one change
at a time (4.1). Before the leader is removed, it transfers the lead, so that no coordinator leads a group
without being a member. Each operation can be repeated safely: the answer to the first request may have been
lost.

Tested by tests/cluster/test_coordinators.py.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from ca.errors import Conflict, FilestoreError, NotFound, Unavailable
from ca.identity import check_address, check_member_id, check_port
from coordinator.member.driver import Driver
from coordinator.raft.core import NotLeader, Status
from coordinator.storage.config import COORDINATORS_MAX
from coordinator.storage.state_store import members_of
from metadata.model.records import LEARNER, VOTER, ClusterView, CoordinatorRecord
from metadata.protocol.commands import RecordCoordinators
from runtime.background import Work

CAUGHT_UP_ENTRIES = 1000  # behind the commit index: a fraction of a second of writes
CAUGHT_UP_LOOKS = 2  # one check may fall between two bursts of writes
PROMOTION_CHECK_S = 1.0
HAND_OVER_S = 2.0  # an election takes less
LIVE_S = 1.0  # two heartbeats, unless specified otherwise
POLL_S = 0.02

_log = logging.getLogger(__name__)


class Operations:
    """Changes of the group. `view` is the applied view of this coordinator."""

    def __init__(self, own_id: str, driver: Driver, view: Callable[[], ClusterView]) -> None:
        self._own_id = own_id
        self._driver = driver
        self._view = view
        self._changing = asyncio.Lock()
        self._caught_up: dict[str, int] = {}

    async def add(self, record: CoordinatorRecord) -> CoordinatorRecord:
        """Add a coordinator as a learner; return its stored record.

        Raises InvalidRequest, Conflict for an id or address that belongs or belonged to another one,
        NotLeader.
        """
        async with self._changing:
            view = await self._newest()
            record = _checked(record, development=view.development)
            known = next((c for c in view.coordinators if c.coordinator_id == record.coordinator_id), None)
            if known is not None and msgspec.structs.replace(record, role=known.role) == known:
                return known
            _check_free(record, view)
            await self._change(view, [*view.coordinators, record])
        _log.info("added the coordinator %s as a learner", record.coordinator_id)
        return record

    async def check_free(self, record: CoordinatorRecord) -> CoordinatorRecord:
        """Return the record that `add` would store. Raises what that does."""
        view = await self._newest()
        record = _checked(record, development=view.development)
        if all(msgspec.structs.replace(record, role=known.role) != known for known in view.coordinators):
            _check_free(record, view)
        return record

    async def remove(self, coordinator_id: str) -> None:
        """Remove a coordinator for ever. The leader hands over first and raises NotLeader.

        Raises NotFound, Conflict if the remaining active ones would be no majority.
        """
        async with self._changing:
            view = await self._newest()
            if coordinator_id in view.removed_coordinators:
                return
            if all(record.coordinator_id != coordinator_id for record in view.coordinators):
                raise NotFound(f"There is no coordinator {coordinator_id}.")
            left = [record for record in view.coordinators if record.coordinator_id != coordinator_id]
            await self._check_majority_lives(left)
            if coordinator_id != self._own_id:
                await self._change(view, left)
                _log.info("removed the coordinator %s", coordinator_id)
                return
        await self.transfer("")
        raise NotLeader(self._driver.leader)

    async def transfer(self, target: str) -> str:
        """Transfer the lead to a voter, "" for the most advanced one; return the new leader.

        Raises NotFound, Conflict if it cannot lead, Unavailable without another leader in time, NotLeader.
        """
        self._require_leader()
        if target == self._own_id:
            return target
        voters = members_of(self._view().coordinators).voters
        if target and target not in voters:
            raise NotFound(f"There is no coordinator {target} with a vote.")
        candidates = [target] if target else [voter for voter in voters if voter != self._own_id]
        if not candidates or not await self._live(candidates, 1):
            raise Conflict("No other coordinator is reachable and eligible to lead.")
        self._driver.transfer_leader(target)
        if not await self._led_by_another():
            raise Unavailable("No coordinator took over the lead in time.")
        return self._driver.leader

    async def hand_over(self) -> None:
        """Before this process ends: if it leads, wait until another does, for HAND_OVER_S at most."""
        try:
            leader = await self.transfer("")
            _log.info("transferred the lead to %s", leader)
        except NotLeader:
            return
        except FilestoreError as error:
            _log.info("the lead was not transferred: %s", error.details)

    async def run(self) -> None:
        """Promote learners that have caught up, for ever; only the leader finds any."""
        every_s = PROMOTION_CHECK_S
        work = Work("promotion of learners", self._promote_ready, every_s=every_s, first_s=every_s, fails=())
        await work.run()

    async def _promote_ready(self) -> None:
        for learner in self._ready_learners():
            try:
                await self._promote(learner)
            except (FilestoreError, NotLeader) as error:
                _log.info("the coordinator %s is not promoted yet: %s", learner, error)

    async def _promote(self, learner: str) -> None:
        async with self._changing:
            view = await self._newest()
            promoted = [
                msgspec.structs.replace(record, role=VOTER) if record.coordinator_id == learner else record
                for record in view.coordinators
            ]
            if promoted == view.coordinators:
                return
            await self._change(view, promoted)
        _log.info("the coordinator %s has caught up and votes from now on", learner)

    def _ready_learners(self) -> list[str]:
        """Return learners whose logs were close to ours at CAUGHT_UP_LOOKS checks in a row."""
        status = self._driver.status()
        if not self._driver.is_leader:
            self._caught_up.clear()
            return []
        learners = members_of(self._view().coordinators).learners
        close = [learner for learner in learners if _is_close(status, learner)]
        self._caught_up = {learner: self._caught_up.get(learner, 0) + 1 for learner in close}
        return [learner for learner in close if self._caught_up[learner] >= CAUGHT_UP_LOOKS]

    def _require_leader(self) -> None:
        if not self._driver.is_leader:
            raise NotLeader(self._driver.leader)

    async def _newest(self) -> ClusterView:
        """Return the view with every change that was acknowledged before."""
        self._require_leader()
        await self._driver.read_barrier()
        self._require_leader()
        return self._view()

    async def _change(self, view: ClusterView, coordinators: list[CoordinatorRecord]) -> None:
        coordinators = sorted(coordinators, key=lambda record: record.coordinator_id)
        command = RecordCoordinators(coordinators=coordinators)
        await self._driver.change_members(members_of(view.coordinators), command)

    async def _check_majority_lives(self, left: list[CoordinatorRecord]) -> None:
        voters = members_of(left).voters
        if not voters:
            raise Conflict("The last coordinator with a vote cannot be removed.")
        majority = len(voters) // 2 + 1
        live = await self._live(voters, majority)
        if len(live) < majority:
            raise Conflict(
                f"Only {len(live)} of the {len(voters)} remaining coordinators can be "
                "reached, which is not a majority."
            )

    async def _live(self, voters: Sequence[str], enough: int) -> list[str]:
        """Return the voters that were active lately, including this one.

        It waits for `enough`, as a new leader has no answers yet.
        """
        give_up_at = time.monotonic() + LIVE_S
        while True:
            progress = self._driver.status().progress
            live = [
                voter
                for voter in voters
                if voter == self._own_id or (voter in progress and progress[voter].active)
            ]
            if len(live) >= enough or time.monotonic() > give_up_at:
                return live
            await asyncio.sleep(POLL_S)

    async def _led_by_another(self) -> bool:
        """Return whether another leads within HAND_OVER_S."""
        try:
            async with asyncio.timeout(HAND_OVER_S):
                while self._driver.leader in ("", self._own_id):
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return False
        return True


def _checked(record: CoordinatorRecord, *, development: bool) -> CoordinatorRecord:
    """Return the record of a learner. Raises InvalidRequest naming the field."""
    return CoordinatorRecord(
        coordinator_id=check_member_id(record.coordinator_id),
        address=check_address(record.address, development=development, field="address"),
        peer_port=check_port(record.peer_port, "peer_port"),
        api_port=check_port(record.api_port),
        role=LEARNER,
    )


def _check_free(record: CoordinatorRecord, view: ClusterView) -> None:
    if record.coordinator_id in view.removed_coordinators:
        raise Conflict("A coordinator with this id was removed. The new one needs another id.")
    if len(view.coordinators) >= COORDINATORS_MAX:
        raise Conflict(f"A cluster has at most {COORDINATORS_MAX} coordinators.")
    for known in view.coordinators:
        if known.coordinator_id == record.coordinator_id:
            raise Conflict("A coordinator with this id exists at another address.")
        ports = {known.peer_port, known.api_port} & {record.peer_port, record.api_port}
        if known.address == record.address and ports:
            raise Conflict(f"The coordinator {known.coordinator_id} already has this address and port.")


def _is_close(status: Status, learner: str) -> bool:
    progress = status.progress.get(learner)
    return progress is not None and progress.active and progress.match + CAUGHT_UP_ENTRIES >= status.commit
