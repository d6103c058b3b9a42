"""The leader raises the rules of the state machine once every coordinator knows the newer ones.

That is when the last of them has been upgraded.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ca.errors import FilestoreError
from coordinator.machine.execution.rules import RULES
from coordinator.member.driver import Driver
from coordinator.model.records import ClusterView
from coordinator.protocol.commands import RaiseRules
from coordinator.raft.core import NotLeader
from coordinator.rpc.client import MetadataClient
from coordinator.storage.state_store import Store

LOOK_S: Final = 5.0

_log = logging.getLogger(__name__)


class Upgrades:
    """`run` on every coordinator; the one that leads acts."""

    def __init__(
        self,
        own_id: str,
        driver: Driver,
        store: Store,
        metadata: MetadataClient,
        view: Callable[[], ClusterView],
        *,
        look_s: float = LOOK_S,
    ) -> None:
        self._own_id = own_id
        self._driver = driver
        self._store = store
        self._metadata = metadata
        self._view = view
        self._look_s = look_s
        self._waited_for: list[str] = []  # as they were logged last

    async def run(self) -> None:
        """Until cancelled. Costs nothing while the newest rules are in force."""
        while True:
            await asyncio.sleep(self._look_s)
            if self._driver.is_leader and self._store.rules() < RULES:
                try:
                    await self._raise()
                except (FilestoreError, NotLeader) as error:
                    _log.debug("the rules are not raised now: %s", error)

    async def _raise(self) -> None:
        known = await self._metadata.rules() | {self._own_id: RULES}
        members = [record.coordinator_id for record in self._view().coordinators]
        self._log_waiting([member for member in members if known.get(member, 0) < RULES])
        version = min(RULES, *(known.get(member, 0) for member in members))
        if version > self._store.rules():
            await self._driver.propose(RaiseRules(version=version))
            _log.info("every coordinator knows the rules %d: they are in force", version)

    def _log_waiting(self, waited_for: list[str]) -> None:
        """Whom the newest rules wait for: one that is gone for good holds them up until it is removed."""
        if waited_for and waited_for != self._waited_for:
            _log.warning(
                "the newest rules wait for coordinators of an older version, or that do not answer",
                extra={"rules": RULES, "coordinators": waited_for},
            )
        self._waited_for = waited_for
