"""A member's view of the cluster, and its age.

The view contains the members, the keys of user tokens and revoked certificates.

Every HEARTBEAT_S a heartbeat goes to the coordinators. The leader's answer is linearizable and says whether
the view changed; the others are asked for as much only while no leader answers. A member whose view was not
confirmed for VIEW_AGE_S_MAX refuses what depends on it rather than guess. The view also says who the
coordinators are: connections follow it, and the list is kept on disk.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from ca.errors import FilestoreError, Unavailable
from ca.hostnames import authority_of
from ca.identity import Identity, Role
from ca.usertoken import Claims, Ticket, Verifier
from metadata.model.records import ClusterView, CoordinatorRecord, NodeRecord
from metadata.protocol.calls import (
    PROOF_NONE,
    PROOF_NOW,
    PROOF_SOON,
    HeartbeatCall,
    HeartbeatReply,
)
from metadata.protocol.queries import GetView
from metadata.rpc.client import MetadataClient
from metadata.rpc.roster import Roster, write_known
from runtime.background import Pause, Work
from runtime.clock import now_ms
from web.cors import ConsoleMembers, origins_of

HEARTBEAT_S = 2.0
AGAIN_S = 0.5  # after one that was not answered, and
FIRST_S = 0.2  # after one without which there is no view
PROOF_AGE_S_MAX = 1.5 * HEARTBEAT_S  # of the leader's last answer, for the others to be asked for none
VIEW_AGE_S_MAX = 5.0

_log = logging.getLogger(__name__)


class View:
    """The newest ClusterView and its age. `run` keeps it fresh until it is cancelled.

    `known` is the file with the list of coordinators; `on_coordinators` is called with a new list.
    `on_leader` receives each answer of the leader to a heartbeat.
    """

    def __init__(
        self,
        metadata: MetadataClient,
        numbers: Callable[[], HeartbeatCall],
        *,
        known: Path | None = None,
        on_coordinators: Callable[[Sequence[CoordinatorRecord]], None] = lambda _: None,
        on_leader: Callable[[HeartbeatReply], None] = lambda _: None,
    ) -> None:
        self._metadata = metadata
        self._numbers = numbers
        self._known = known
        self._on_coordinators = on_coordinators
        self._on_leader = on_leader
        self._coordinators: list[CoordinatorRecord] = []
        self._roster = Roster(metadata.coordinators)
        self._current: ClusterView | None = None
        self._verifier: Verifier | None = None
        self._nodes: dict[str, NodeRecord] = {}
        self._revoked: frozenset[str] = frozenset()
        self._console_members = ConsoleMembers()
        self._confirmed_at = self._leader_confirmed_at = self._doubted_at = float("-inf")
        self._leader = ""
        self._hurries: dict[str, asyncio.Event] = {}  # by coordinator: beat now
        self._refusal = ""  # the rejection that was logged
        self._clock_offset_s = math.nan
        self._leader_answer: tuple[HeartbeatReply, float] | None = None  # and our monotonic clock then
        self.on_revoked: Callable[[frozenset[str]], None] = lambda _: None  # of certificates that have ended
        self._changed = asyncio.Event()
        self._reading = asyncio.Lock()

    @property
    def current(self) -> ClusterView:
        """The newest view, however old. Raises Unavailable before the first."""
        if self._current is None:
            raise Unavailable("This member has not reached the coordinators yet.")
        return self._current

    def age_s(self) -> float:
        """Seconds since a coordinator confirmed the view; infinite before the first time."""
        return time.monotonic() - self._confirmed_at

    def clock_offset_s(self) -> float:
        """This clock less the leader's, with the time that its last answer was under way; NaN if unknown."""
        return self._clock_offset_s

    def is_fresh(self) -> bool:
        """Whether the view is young enough to decide by."""
        return self.age_s() <= VIEW_AGE_S_MAX

    def require_fresh(self) -> ClusterView:
        """The view, if it is fresh enough to decide by. Raises Unavailable."""
        if not self.is_fresh():
            if self._metadata.is_removed:
                raise Unavailable("This member was removed from the cluster. Stop it.")
            if self._metadata.refusal:
                raise Unavailable(f"The coordinators refuse this member: {self._metadata.refusal}")
            raise Unavailable(
                "This member has lost contact with the coordinators, and its view of the cluster is too old."
            )
        return self.current

    def require_leader(self) -> None:
        """Raises Unavailable when the leader has answered no heartbeat lately: no change would reach it."""
        if time.monotonic() - self._leader_confirmed_at > VIEW_AGE_S_MAX:
            raise Unavailable(
                "The leading coordinator does not answer this member. Content can be read, but changes fail."
            )

    def verify(self, token: str, *, at_any_age: bool = False) -> Claims:
        """The claims of a user token, by the leader's clock.

        Raises Unauthorized, or Unavailable when the view is too old; with `at_any_age` only when there is
        none, for what coordinators answer by what they know of the user.
        """
        _ = self.current if at_any_age else self.require_fresh()
        assert self._verifier is not None
        return self._verifier.verify(token, now_ms=self._leader_now_ms())

    def token_ends_at_ms(self, token: str) -> int:
        """Return when a user token that was just verified expires, at its own end or that of its key."""
        assert self._verifier is not None
        return self._verifier.ends_at_ms(token)

    def verify_ticket(self, text: str) -> Ticket:
        """Verify a ticket by the leader's clock, and return its content.

        Raises Gone, Unauthorized as `Verifier.verify_ticket` does, Unavailable when the view is too old.
        """
        self.require_fresh()
        assert self._verifier is not None
        return self._verifier.verify_ticket(text, now_ms=self._leader_now_ms())

    def token_keys(self) -> list[dict[str, str]]:
        """The keys that user tokens verify with now. Raises Unavailable when the view is too old."""
        view, at_ms = self.require_fresh(), self._leader_now_ms()
        ended = {kid for kid, ends_at_ms in view.token_key_ends.items() if ends_at_ms <= at_ms}
        return [key for key in view.user_token_keys if key.get("kid") not in ended]

    def _leader_now_ms(self) -> int:
        """The leader's clock, as its last answer told and time has gone on since; ours before the first."""
        at_ms = self._leader_ms(lambda answer: answer.at_ms)
        return now_ms() if at_ms is None else at_ms

    def kept_ms(self) -> int | None:
        """Return the time that does not jump with all clocks; None before the leader has told it."""
        return self._leader_ms(lambda answer: answer.kept_ms or answer.at_ms)

    def _leader_ms(self, told: Callable[[HeartbeatReply], int]) -> int | None:
        if self._leader_answer is None:
            return None
        answer, at_s = self._leader_answer
        return told(answer) + int((time.monotonic() - at_s) * 1000)

    def node(self, node_id: str) -> NodeRecord | None:
        """A node that has joined, or None."""
        return self._nodes.get(node_id)

    def console_members(self) -> ConsoleMembers:
        """Return the other members that serve the console; none before the first view."""
        return self._console_members

    def server_name(self, node_id: str) -> str:
        """The name in a node's certificate."""
        return Identity(self.current.cluster, Role.NODE, node_id).dns_name

    def is_revoked(self, serial: str) -> bool:
        """Whether a certificate was revoked."""
        return serial in self._revoked

    def is_issued(self, node_id: str, serial: str) -> bool:
        """Whether the log knows this certificate of a node, as far as this view tells."""
        return serial in self.current.node_serials.get(node_id, ())

    async def wait_until_fresh(self) -> None:
        """Returns when the coordinators have confirmed a view."""
        while self.age_s() > VIEW_AGE_S_MAX:
            self._changed.clear()
            await self._changed.wait()

    async def fetch_confirmed(self) -> ClusterView:
        """The view that the leader has confirmed after this was asked for. The caller sets the deadline."""
        asked_at = time.monotonic()
        self._doubt()
        while self._leader_confirmed_at <= asked_at:
            self._changed.clear()
            await self._changed.wait()
        return self.current

    async def run(self) -> None:
        """Send heartbeats to every coordinator for ever; one that hangs holds up none of the others."""
        await self._roster.run(self._beat_for_ever, "heartbeat to")

    async def _beat_for_ever(self, coordinator: CoordinatorRecord) -> None:
        coordinator_id, hurry = coordinator.coordinator_id, asyncio.Event()

        async def beat() -> Pause:
            started_at = time.monotonic()
            is_answered = await self._beat(coordinator_id, started_at)
            every_s = min(HEARTBEAT_S, HEARTBEAT_S if is_answered else self._again_s())
            return Pause(max(0.0, started_at + every_s - time.monotonic()))

        self._hurries[coordinator_id] = hurry
        try:
            await Work("heartbeats", beat, target=coordinator_id, event=hurry, fails=()).run()
        finally:
            del self._hurries[coordinator_id]

    def _again_s(self) -> float:
        return AGAIN_S if self._current is not None else FIRST_S

    def _doubt(self) -> None:
        """Ask all for proof at once, until the leader gives it."""
        self._doubted_at = time.monotonic()
        for hurry in self._hurries.values():
            hurry.set()

    def _proof(self, coordinator_id: str) -> int:
        """Say what to ask this coordinator for."""
        if self._leader_confirmed_at <= max(self._doubted_at, time.monotonic() - PROOF_AGE_S_MAX):
            return PROOF_NOW
        return PROOF_SOON if coordinator_id == self._leader else PROOF_NONE

    async def _beat(self, coordinator_id: str, started_at: float) -> bool:
        """Whether it was answered."""
        call = replace(self._numbers(), at_ms=now_ms(), proof=self._proof(coordinator_id))
        reply = await self._metadata.heartbeat(coordinator_id, call)
        if (refusal := self._metadata.refusal) != self._refusal:
            self._refusal = refusal
            _log.warning("heartbeats are %s", f"refused: {refusal}" if refusal else "taken again")
        if reply is None:
            if call.proof == PROOF_SOON:  # the leader, as far as is known: the others know who leads now
                self._doubt()
            return False
        if call.proof == PROOF_NONE:
            return True
        self._leader = reply.leader
        if reply.leader == coordinator_id:
            self._clock_offset_s = (now_ms() - reply.at_ms) / 1000
            self._leader_answer = (reply, time.monotonic())
            self._on_leader(reply)
        async with self._reading:
            if self._current is None or self._current.version < reply.view_version:
                try:
                    self._adopt(await self._metadata.read(GetView(), ClusterView))
                    await self._follow_coordinators()
                except FilestoreError as error:
                    _log.info("cannot read the view of the cluster: %s", error.details)
                    return False
        self._confirmed_at = max(self._confirmed_at, started_at)
        if reply.leader == coordinator_id:
            self._leader_confirmed_at = max(self._leader_confirmed_at, started_at)
        self._changed.set()
        return True

    def _adopt(self, view: ClusterView) -> None:
        self._current = view
        self._verifier = Verifier(view.cluster, view.user_token_keys, ends_at_ms=view.token_key_ends)
        self._nodes = {node.node_id: node for node in view.nodes}
        self._console_members = ConsoleMembers(
            nodes=origins_of((node.address, node.api_port) for node in view.nodes if _serves(node)),
            coordinators=origins_of((each.address, each.api_port) for each in view.coordinators),
        )
        revoked, self._revoked = self._revoked, frozenset(view.revoked_serials)
        if ended := self._revoked - revoked:
            self.on_revoked(ended)
        _log.info("view %d: %d nodes", view.version, len(view.nodes))

    async def _follow_coordinators(self) -> None:
        """Connect to the coordinators that the view names, and keep the list for the next start."""
        coordinators = self.current.coordinators
        if coordinators == self._coordinators:
            return
        self._coordinators = coordinators
        self._metadata.update(coordinators)
        self._roster.update(coordinators)
        self._on_coordinators(coordinators)
        if self._known is not None:
            try:
                await asyncio.to_thread(write_known, self._known, coordinators)
            except OSError as error:
                _log.warning("cannot save the list of coordinators: %s", error)


def _serves(node: NodeRecord) -> bool:
    return node.peer_port > 0 and not node.is_revoked


def node_url(view: View, node_id: str, *, own_url: str = "") -> str:
    """`https://HOST:PORT` of a node's client port.

    For a node that the view does not know yet: `own_url`, that of this process if it is a node, else that
    of any node that has run. Each node passes on what another one holds, and finds a new peer without the
    view. Raises Unavailable.
    """
    if (known := view.node(node_id)) is not None:
        return url_of(known.address, known.api_port)
    if own_url:
        return own_url
    for node in view.current.nodes:
        if node.peer_port and not node.draining:
            return url_of(node.address, node.api_port)
    raise Unavailable("No node's address is known here yet.")


def url_of(address: str, port: int) -> str:
    """`https://HOST:PORT`."""
    return f"https://{authority_of(address, port)}"
