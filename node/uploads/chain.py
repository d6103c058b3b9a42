"""The chain of an upload at the node that holds it: which members are linked, and what is durable where.

Client → holder → first member → second: each has its own copy of the bytes in its own file, and a link tails
that file (`node/uploads/chain_link.py`). These statements hold whenever an offset is reported to a client:

1. The holder and write_quorum - 1 members have that many bytes durably, and the log says so, with their
   sha256: `RecordProgress`, which the log accepts only from the holder of the present epoch.
2. A member's bytes are a prefix of the holder's, proved by sha256 when the link begins. It never goes below
   the offset in the log, since the holder tells the log before bytes are dropped (`RewindUpload`).
3. Within an epoch the holder's own file never shrinks below what it has proposed to the log.

So if the holder is lost, every other node of that quorum can resume at that offset
(`node/uploads/succession.py`).

If a member fails or stalls, the holder links directly to the members behind it. It is tried again after
RETRY_S and catches up from the file. If there are fewer members than the write quorum needs, or members
drain, nodes outside the placement stand in. The holder alone decides this; members only report what they
lost.

A member that did not answer lately (`node/peer/client.py`) has a link of its own from the beginning, so no
other member is behind it, others stand in for it at once, and nothing waits for it. So a node that hangs
costs one request SILENCE_S, or STALL_S if it answers but accepts nothing, for an upload of any size. Later
requests lose no time.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from ca.errors import FilestoreError, InsufficientStorage, Unavailable
from metadata.rpc.view import View
from node.base.metrics import NodeMetrics
from node.peer.client import PeerClient, PeerFailed
from node.uploads.chain_link import Link, LinkSource, LinkTerms, next_fencing_token
from runtime.lifetime import end_tasks
from runtime.time_limits import PATIENCE_S, bounded_s, note_progress
from runtime.wording import counted

RETRY_S = 5.0  # before a member that failed is tried again
LACKING_S = PATIENCE_S  # without a write quorum of members; one that hangs is skipped within this time
AGREEING_S = 20.0  # the same while this node hashes its bytes; they are not hashed again
FUTILE_MAX = 2  # failures of a member without progress; then it does not count until it makes some
UNHEARD_S = 1.0  # without a write quorum, before others stand in for silent members
POLL_S = 0.5
GRACE_S = 1.0  # without progress, for members that the write quorum no longer needs
BEHIND_BYTES_MAX = 256 << 20  # received beyond what the quorum has: then the client must wait
SUBSTITUTES_MAX = 4
SHOWN_MAX = 5  # names in a message

_log = logging.getLogger(__name__)


class Chain:
    """The links of one request that writes an upload. `start` it, `close` it."""

    def __init__(
        self,
        *,
        node_id: str,
        peers: PeerClient,
        view: View,
        metrics: NodeMetrics,
        source: LinkSource,
        terms: LinkTerms,
        placement: Sequence[str],
        needed: int | None = None,
    ) -> None:
        """Create a chain to the members of `placement`.

        `needed`: how many of them must have the bytes, and no others stand in. By default the write quorum
        sets that number, and other nodes stand in for failed members.
        """
        self._is_fixed = needed is not None
        self._peers, self._view, self._source, self._terms = peers, view, source, terms
        self._sent = metrics.replica_bytes.labels("sent")
        self._node_id = node_id
        self._needed = view.current.write_quorum - 1 if needed is None else needed
        self._members = [name for name in placement if name != node_id]
        self._links: list[Link] = []
        self._done: dict[str, int] = {}
        self._failed_at_s: dict[str, float] = {}
        self._full: set[str] = set()  # of the failed members
        self._best: dict[str, int] = {}  # the highest durable offset of a member when it failed
        self._reached: dict[str, int] = {}  # the highest durable offset by member; "": hashed here
        self._futile: Counter[str] = Counter()  # how often it failed since then without progress
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._lacking_since_s: float | None = self._loop.time()

    def start(self) -> None:
        """Start the links."""
        self._task = asyncio.create_task(self._run(), name=f"chain of {self._terms.file_uuid}")

    async def close(self) -> None:
        """Close all links; members keep their bytes."""
        if self._task is not None:
            await end_tasks([self._task])
        self._source.close()
        if self._task is not None and not self._task.cancelled():
            self._task.result()

    def durable(self) -> dict[str, int]:
        """Return how many bytes are durable, by member; only for linked members and those that ended well."""
        found = dict(self._done)
        for link in self._links:
            found |= {name: stop for name, stop in link.durable.items() if name not in link.lost}
        return found

    def quorum_offset(self, *, staying: bool = False) -> int:
        """Return how many bytes are durable on as many members as the write quorum needs besides the holder.

        `staying`: only count nodes that are not leaving.
        """
        if self._needed <= 0:
            return self._source.limit
        durable = self.durable().items()
        offsets = sorted(
            (stop for name, stop in durable if not (staying and self.leaves(name))), reverse=True
        )
        return offsets[self._needed - 1] if len(offsets) >= self._needed else 0

    def leaves(self, name: str) -> bool:
        """Return whether a node drains or was removed: it counts as long as no other node has the bytes."""
        node = self._view.node(name)
        return node is None or node.draining

    def require(self) -> None:
        """Raise Unavailable if there was no write quorum of members for LACKING_S.

        Raises InsufficientStorage if the only cause is a lack of space. A member that repeatedly accepts
        bytes and loses them does not count.

        While this node hashes its bytes before it links a member, that member may still join, for AGREEING_S.
        """
        since_s = self._lacking_since_s
        patience_s = AGREEING_S if any(link.is_hashing for link in self._links) else LACKING_S
        if since_s is not None and self._loop.time() - since_s >= patience_s:
            raise self._shortage()

    def _shortage(self) -> FilestoreError:
        """Return why there is no write quorum."""
        sound = self._sound()
        lacking = set(self._members) - sound
        if len(sound) < self._needed and lacking and lacking <= self._full:
            return InsufficientStorage(
                f"{counted(len(sound) + 1, 'node has', 'nodes have')} room for these bytes, "
                f"{self._needed + 1} are required: delete files or add nodes. Full: "
                f"{', '.join(sorted(lacking)[:SHOWN_MAX])}."
            )
        return _too_few(self._needed)

    async def reach(self, offset: int) -> None:
        """Wait until this many bytes are durable on the write quorum.

        Raises as `require` does, and when the client has waited long enough; the next request then replaces
        the member that was too slow.
        """
        while self.quorum_offset() < offset:
            self.require()
            self._note_progress()
            if not bounded_s(PATIENCE_S):
                self._note_silent()
                raise self._shortage()
            await self._wait()
        note_progress()

    def end(self) -> None:
        """Note that no more bytes arrive."""
        self._source.end()
        self._wake()

    async def linger(self) -> None:
        """After `end`: wait for members that the quorum does not need, as long as they make progress.

        Silent members are not awaited, and one without progress is left to the next request.
        """
        silent = self._peers.silent
        moved_at_s, known = self._loop.time(), self.durable()
        while any(self._first_lacking(link) not in silent for link in self._links):
            if self._loop.time() - moved_at_s >= GRACE_S:
                self._note_silent()
                return
            await self._wait()
            if self.durable() != known:
                moved_at_s, known = self._loop.time(), self.durable()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._note_lacking()
                for members in self._wanted():
                    link = Link(
                        self._peers,
                        self._source,
                        replace(self._terms, fencing_token=next_fencing_token()),
                        members,
                        on_change=self._on_link,
                        sent=self._sent,
                    )
                    self._links.append(link)
                    group.create_task(self._follow(link), name=f"link to {link.member}")
                await self._wait()

    async def _follow(self, link: Link) -> None:
        try:
            await link.run()
            self._done |= {name: stop for name, stop in link.durable.items() if name not in link.lost}
        except PeerFailed as failure:
            facts = {"peer": failure.node_id, "reason": failure.reason, "file_uuid": self._terms.file_uuid}
            _log.warning("lost a member of a chain", extra=facts)
            self._failed_at_s[link.member] = self._loop.time()
            if failure.is_silent:
                self._peers.silent.note(failure.node_id)
            self._note_futile(link)
            (self._full.add if failure.is_full else self._full.discard)(link.member)
        finally:
            self._links.remove(link)
            self._wake()

    def _wanted(self) -> list[list[str]]:
        """Return the links to start now.

        Members that never failed make one chain. Others are tried alone, as are those that did not answer
        lately.
        """
        now_s = self._loop.time()
        if self._source.ended and self._lacking_since_s is None:
            return []  # the missing bytes are copied when the content is complete
        waiting = [name for name in self._idle(self._members) if self._may_try(name, now_s)]
        silent = self._peers.silent
        fresh = [name for name in waiting if name not in self._failed_at_s and name not in silent]
        links = [fresh] if fresh else []
        links += [[name] for name in waiting if name not in fresh]
        hopeless = set(self._idle(self._members)).difference(waiting) | self._unheard(now_s)
        hopeless.update(filter(self.leaves, self._members))
        missing = self._needed - len(self._members) + len(hopeless)
        for name in self._substitutes(now_s)[: max(0, missing)]:
            self._members.append(name)
            links.append([name])
        return links

    def _first_lacking(self, link: Link) -> str:
        """Return the first member of a link that lacks bytes needed by those behind it; "" at its end."""
        for name in (link.member, *link.behind):
            if name not in link.lost and link.durable.get(name, -1) < self._source.limit:
                return name
        return ""

    def _unheard(self, now_s: float) -> set[str]:
        """Return silent members that have not answered their links either, after a moment."""
        since_s = self._lacking_since_s
        if since_s is None or now_s - since_s < UNHEARD_S:
            return set()
        return {name for name in self._members if name in self._peers.silent} - self.durable().keys()

    def _idle(self, names: Iterable[str]) -> list[str]:
        linked = {
            name for link in self._links for name in (link.member, *link.behind) if name not in link.lost
        }
        return [name for name in names if name not in linked and name not in self._done]

    def _may_try(self, name: str, now_s: float) -> bool:
        failed_at_s = self._failed_at_s.get(name)
        return failed_at_s is None or now_s - failed_at_s >= RETRY_S

    def _substitutes(self, now_s: float) -> list[str]:
        nodes = [] if self._is_fixed else self._view.current.nodes
        known = sorted(node.node_id for node in nodes if node.takes_replicas)
        strangers = [name for name in known if name != self._node_id and name not in self._members]
        return [name for name in strangers if self._may_try(name, now_s)][:SUBSTITUTES_MAX]

    def _on_link(self) -> None:
        for link in self._links:
            for name in link.lost:
                # One more attempt at once, skipping the member before it.
                self._failed_at_s.setdefault(name, float("-inf"))
        self._wake()

    def _note_progress(self) -> None:
        """Restart the client's patience if a member or this node has made progress.

        A member has if it has more than any of its links has ever reached; this node has if it has hashed
        more of its bytes.
        """
        reached = self.durable() | {"": self._source.hashed_bytes}
        if any(stop > self._reached.get(name, 0) for name, stop in reached.items()):
            note_progress()
        self._reached |= {name: max(stop, self._reached.get(name, 0)) for name, stop in reached.items()}

    def _note_silent(self) -> None:
        for name in filter(None, map(self._first_lacking, self._links)):
            self._peers.silent.note(name)

    def _note_lacking(self) -> None:
        if len(self._sound()) >= self._needed:
            self._lacking_since_s = None
        elif self._lacking_since_s is None:
            self._lacking_since_s = self._loop.time()

    def _note_futile(self, link: Link) -> None:
        durable_offset = link.durable.get(link.member, 0)
        is_more = durable_offset > self._best.get(link.member, -1)
        self._futile[link.member] = 0 if is_more else self._futile[link.member] + 1
        self._best[link.member] = max(durable_offset, self._best.get(link.member, 0))

    def _sound(self) -> set[str]:
        """Return the valid members among those that have reported durable bytes."""
        return {durable[0] for durable in self.durable().items() if self._is_sound(durable)}

    def _is_sound(self, durable: tuple[str, int]) -> bool:
        """Return whether a member counts; a full one counts again if it has accepted more, or all."""
        name, offset = durable
        is_doubtful = name in self._full or self._futile[name] >= FUTILE_MAX
        return not is_doubtful or offset > self._best[name] or offset >= self._source.limit

    async def _wait(self) -> None:
        changed = self._changed
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await changed.wait()
        self._note_lacking()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _too_few(needed: int) -> Unavailable:
    return Unavailable(
        f"Fewer than {needed + 1} nodes accept these bytes. Ask for the offset, and resume there.",
        retry_after_s=2,
    )
