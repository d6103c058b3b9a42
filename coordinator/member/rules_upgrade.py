"""Raise the rules once every member supports newer ones. Apart: a separate task of the leader.

This is when the last member has been upgraded. It does not wait for nodes that are down: a node is rejected
if it comes back with an older version.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ca.errors import FilestoreError
from coordinator.member.driver import Driver
from coordinator.raft.core import NotLeader
from coordinator.storage.state_store import Store
from metadata.model.records import ClusterView, NodeRecord
from metadata.model.rules import RULES
from metadata.protocol.commands import RaiseRules
from metadata.rpc.client import MetadataClient
from runtime.background import Work

LOOK_S: Final = 5.0

_log = logging.getLogger(__name__)


class Upgrades:
    """`run` on every coordinator; the leader acts."""

    def __init__(
        self,
        own_id: str,
        driver: Driver,
        store: Store,
        metadata: MetadataClient,
        view: Callable[[], ClusterView],
        node_rules: Callable[[Iterable[NodeRecord]], Mapping[str, int]],
        *,
        look_s: float = LOOK_S,
    ) -> None:
        """Prepare. `node_rules`: see `metadata.rpc.node_health.NodeHealth.rules`."""
        self._own_id = own_id
        self._driver = driver
        self._store = store
        self._metadata = metadata
        self._view = view
        self._node_rules = node_rules
        self._look_s = look_s
        # Coordinators and nodes that were logged last.
        self._waited_for: tuple[list[str], list[str]] = ([], [])

    async def run(self) -> None:
        """Run until cancelled. Costs nothing while the newest rules are in force."""
        await Work(
            "rules",
            self._look,
            every_s=self._look_s,
            first_s=self._look_s,
            fails=(FilestoreError, NotLeader),
            level=logging.DEBUG,
            trouble="the rules are not raised now",
        ).run()

    async def _look(self) -> None:
        if self._driver.is_leader and self._store.rules() < RULES:
            await self._raise()

    async def _raise(self) -> None:
        answered = await self._metadata.rules() | {self._own_id: RULES}
        view = self._view()
        known = {each.coordinator_id: answered.get(each.coordinator_id, 0) for each in view.coordinators}
        nodes = self._node_rules(view.nodes)
        self._log_waiting(*([name for name in of if of[name] < RULES] for of in (known, nodes)))
        version = min(RULES, *known.values(), *nodes.values())
        if version > self._store.rules():
            await self._driver.propose(RaiseRules(version=version))
            _log.info("every member supports the rules %d: they are in force", version)

    def _log_waiting(self, coordinators: list[str], nodes: list[str]) -> None:
        """Log the members that the newest rules wait for: one that is gone for good must be removed."""
        if (coordinators or nodes) and (coordinators, nodes) != self._waited_for:
            _log.warning(
                "the newest rules wait for members of an older version or without an answer",
                extra={"rules": RULES, "coordinators": coordinators, "nodes": nodes},
            )
        self._waited_for = coordinators, nodes
