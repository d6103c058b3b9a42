"""The leader's side of the record caches of nodes: which nodes may cache, and which keys are blocked.

The rule is Chubby's (Burrows 2006, section 2.7). Before the leader proposes a command that invalidates
records, it blocks their keys. It waits until every subscriber has confirmed that it dropped them, or until
the subscriber's lease has ended. No I/O here; time is passed in, from any clock that does not go back.

Why a read from a cached record is linearizable: a record is cached from a read that began within the lease,
of keys that were not blocked at any time since the read began (node/base/record_store.py). Let a command E
invalidate it; it must be gone from every node before E can be committed.

1. *The same leader proposes E.* Its subscribers have dropped the record, or their leases have ended. A node
   counts its lease from when it sent the call, the leader from when it received it, and the leader reports a
   shorter lease than it counts (DRIFT_SHARE). So the node's lease ends first, if the clocks drift less than
   that. A later subscriber receives the block with its lease. Keys stay blocked until E is applied here, so
   that a read which begins after that sees E, or until this member no longer leads. The block stays if the
   client that sent E gives up, as E may still be committed.
2. *An earlier leader had granted the lease.* It did so behind a read barrier that began after it received the
   call. A majority confirmed the earlier term then, so no leader of the later term had been elected when the
   node sent its call: the lease ends within LEASE_S of the election. A new leader proposes no such command
   before that. This also holds for a leader that was paused or cut off: its grants follow a barrier that
   began before, and end as early.
3. *E comes from an earlier leader's log.* That leader had blocked the keys at its own subscribers. A new
   leader grants nothing before its first read barrier. Behind that, every entry that it found in the log is
   applied, and no other entry of earlier leaders ever will be. Nodes drop their cache when the term changes.
4. *Two leaders at once.* The one of the earlier term can commit nothing more, and by 2 grants nothing either.
"""

from collections.abc import Iterable

from ca.errors import Unavailable
from metadata.protocol.calls import FollowReply
from metadata.protocol.invalidation import EVERYTHING, Keys

LEASE_S = 2.0  # four polls: two may be lost. Also the longest wait of a write for a dead node
DRIFT_SHARE = 0.1  # of a lease, not told to the node: clocks differ in rate by a thousandth of this
DUE_SHARE = 0.25  # of a lease, after which it is renewed: earlier news need no read barrier
SUBSCRIBERS_MAX = 4096  # worker processes: hundreds of nodes with several each
BLOCKS_MAX = 16_384  # commands that wait, or are not applied yet
REPLY_KEYS_MAX = 1024  # in one answer; more count as everything


class _Subscriber:
    """One worker process of a node. `sent_version` is the version of its last answer."""

    __slots__ = ("acknowledged", "ends_at_s", "has_left", "sent_version")

    def __init__(self, acknowledged: int, sent_version: int, ends_at_s: float) -> None:
        self.acknowledged = acknowledged
        self.sent_version = sent_version
        self.ends_at_s = ends_at_s
        self.has_left = False


class Block:
    """Keys that no node may cache, because of one command.

    `waits_for`: the subscribers that have not acknowledged it, each with the end of its lease at the time of
    the block. A later lease is granted together with the block.
    """

    __slots__ = ("keys", "term", "version", "waits_for")

    def __init__(self, keys: Keys, term: int, version: int, waits_for: dict[str, float]) -> None:
        self.keys = keys
        self.term = term
        self.version = version
        self.waits_for = waits_for


class CacheLeases:
    """Leases and blocks of one leader. The caller first sets the leader by `lead`."""

    def __init__(self, *, lease_s: float = LEASE_S) -> None:
        self._lease_s = lease_s
        self.term = 0
        self.version = 0
        self._quiet_until_s = float("-inf")  # leases of an earlier leader may last until then
        self._subscribers: dict[str, _Subscriber] = {}
        self._blocks: dict[int, Block] = {}  # by version
        self._blocked_version = 0  # of the last block

    def lead(self, term: int, *, at_s: float) -> bool:
        """Set the term that this member leads now, 0 if none; return whether it is new.

        Then all blocks are void.
        """
        if term == self.term:
            return False
        self.term = term
        self._quiet_until_s = at_s + self._lease_s
        self._subscribers.clear()
        self._blocks.clear()
        return True

    def block(self, keys: Keys, *, at_s: float) -> Block:
        """Block these keys, which no node may cache from now on.

        Raises Unavailable if too many commands wait.
        """
        if len(self._blocks) >= BLOCKS_MAX:
            raise Unavailable("Too many changes are waiting on this coordinator.")
        self.version += 1
        self._blocked_version = self.version
        waits_for = {
            name: known.ends_at_s for name, known in self._subscribers.items() if known.ends_at_s > at_s
        }
        block = Block(keys, self.term, self.version, waits_for)
        self._blocks[block.version] = block
        return block

    def wait_s(self, block: Block, *, at_s: float) -> float:
        """Return the time until the command may be proposed without acknowledgements; at most 0 for now.

        For a block of the present term.
        """
        assert block.term == self.term, "a void block"
        return max(self._quiet_until_s, max(block.waits_for.values(), default=at_s)) - at_s

    def release(self, block: Block) -> bool:
        """Remove the block of a command that was applied, or never proposed; return whether it existed.

        Do not call it only because no caller waits any more.
        """
        if block.term != self.term or self._blocks.pop(block.version, None) is None:
            return False
        self.version += 1
        return True

    def acknowledge(self, subscriber: str, term: int, version: int) -> list[Block]:
        """Record that a subscriber has dropped all blocked keys up to `version`.

        Return the blocks that waited for no other subscriber.
        """
        known = self._subscribers.get(subscriber)
        if known is None or term != self.term or version <= known.acknowledged:
            return []
        known.acknowledged = version
        return self._free(subscriber, version)

    def leave(self, subscriber: str) -> list[Block]:
        """Note that a subscriber caches nothing any more, so that no earlier call gets it a lease.

        Return the blocks that waited only for it.
        """
        known = self._subscribers.get(subscriber)
        if known is None:
            return []
        known.has_left, known.ends_at_s = True, float("-inf")
        return self._free(subscriber, self.version)

    def is_behind(self, term: int, version: int) -> bool:
        """Return whether a subscriber with this version lacks a block."""
        return term != self.term or version < self._blocked_version

    def is_due(self, subscriber: str, *, at_s: float) -> bool:
        """Return whether its lease should be renewed: a quarter of it has passed."""
        known = self._subscribers.get(subscriber)
        return known is None or known.ends_at_s - at_s <= self._lease_s * (1 - DUE_SHARE)

    def news(self, subscriber: str) -> FollowReply:
        """Return the blocked keys without a lease; an existing lease does not change."""
        known = self._subscribers.get(subscriber)
        if known is not None:
            known.sent_version = self.version
        return FollowReply(self.term, self.version, _keys_of(self._blocks.values()), 0.0)

    def grant(self, subscriber: str, term: int, acknowledged: int, *, received_at_s: float) -> FollowReply:
        """Answer a call that was received at this time: with the blocked keys, and a lease.

        It must follow a read barrier that began after the call was received, in the same term. There is no
        lease for a subscriber that has not acknowledged the previous answer, so that none delays writes for
        longer than a lease; and none if there are too many.
        """
        acknowledged = acknowledged if term == self.term else 0
        ends_at_s = received_at_s + self._lease_s
        known = self._subscribers.get(subscriber)
        if known is None:
            if is_granted := self._has_room(received_at_s):
                self._subscribers[subscriber] = _Subscriber(acknowledged, self.version, ends_at_s)
        else:
            is_granted = acknowledged >= known.sent_version or known.ends_at_s <= received_at_s
            is_granted = is_granted and not known.has_left
            known.sent_version = self.version
            if is_granted:
                known.ends_at_s = max(known.ends_at_s, ends_at_s)
        lease_s = self._lease_s * (1 - DRIFT_SHARE) if is_granted else 0.0
        return FollowReply(self.term, self.version, _keys_of(self._blocks.values()), lease_s)

    def live(self, *, at_s: float) -> int:
        """Return how many hold a lease."""
        return sum(known.ends_at_s > at_s for known in self._subscribers.values())

    def _free(self, subscriber: str, version: int) -> list[Block]:
        freed = []
        for block in self._blocks.values():
            if block.version <= version and subscriber in block.waits_for:
                del block.waits_for[subscriber]
                if not block.waits_for:
                    freed.append(block)
        return freed

    def _has_room(self, at_s: float) -> bool:
        if len(self._subscribers) >= SUBSCRIBERS_MAX:
            ended = [name for name, known in self._subscribers.items() if known.ends_at_s <= at_s]
            for name in ended:
                del self._subscribers[name]
        return len(self._subscribers) < SUBSCRIBERS_MAX


def _keys_of(blocks: Iterable[Block]) -> list[str]:
    keys = frozenset[str]().union(*(block.keys for block in blocks))
    return sorted(keys if len(keys) <= REPLY_KEYS_MAX else EVERYTHING)
