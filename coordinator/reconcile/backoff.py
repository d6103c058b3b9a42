"""Which nodes have failed at copies lately, and until when they are skipped.

Only in the memory of the leader, and bounded: a new leader begins without it. After a failure a node is
skipped for a time, twice as long after each one, followed by one attempt; a success ends it. So a broken node
costs one attempt now and then, and does not delay the work of others. No I/O; the clock is passed in.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from coordinator.reconcile.facts import Copy, Facts
from runtime.failures import Backoff


class NodeBackoff(Backoff):
    """Nodes that fail, with one blob or another. One blob alone proves little about a node that answers."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock_s)
        self._refused: dict[str, str] = {}  # the last blob since the node succeeded

    def note_refusal(self, node_id: str, sha256: str, reason: str) -> None:
        """Record that it has answered, and did not do its order for this blob."""
        if self._refused.setdefault(node_id, sha256) != sha256:
            self.note_failure(node_id, reason)

    def note_success(self, key: str) -> None:
        """Forget its failures."""
        super().note_success(key)
        self._refused.pop(key, None)

    def clear(self) -> None:
        """Forget all failures and rejections."""
        super().clear()
        self._refused.clear()


class CopyFailures:
    """Failures of the copies that all jobs of one leader have made."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._targets, self._sources = NodeBackoff(clock_s), NodeBackoff(clock_s)
        self._copies = Backoff(clock_s)  # by blob and target
        self._blobs = Backoff(clock_s)  # by blob, if no source could send it
        self._under_way: Counter[str] = Counter()  # by target
        self.answers = Backoff(clock_s)  # by node, if it did not answer a question

    def forget(self) -> None:
        """Forget all failures, as an operator requests it."""
        for known in (self._targets, self._sources, self._copies, self._blobs, self.answers):
            known.clear()

    def forget_node(self, node_id: str) -> None:
        """Forget the failures of a node that was away and is back."""
        for known in (self._targets, self._sources, self.answers):
            known.note_success(node_id)

    def note_begin(self, copy: Copy) -> None:
        """Note that a copy begins. Followed by `note_end`."""
        self._under_way[copy.target] += 1

    def note_end(self, copy: Copy) -> None:
        """Note that it is made, or failed."""
        self._under_way[copy.target] -= 1
        if not self._under_way[copy.target]:
            del self._under_way[copy.target]

    def note_made(self, copy: Copy, failed_sources: Collection[str] | None) -> None:
        """Record a finished copy. `failed_sources`: None if the node does not report them."""
        self._targets.note_success(copy.target)
        self._copies.note_success(_pair(copy.sha256, copy.target))
        self._blobs.note_success(copy.sha256)
        if failed_sources is not None:
            self._note_sources(copy, failed_sources)
            for source in copy.sources:
                if source not in failed_sources:
                    self._sources.note_success(source)

    def note_failed_sources(self, copy: Copy, failed_sources: Collection[str], reason: str) -> None:
        """Record that the target works, but got the blob from no source."""
        self._targets.note_success(copy.target)
        self._blobs.note_failure(copy.sha256, reason)
        self._note_sources(copy, failed_sources)

    def note_failed_target(self, copy: Copy, reason: str, *, has_answered: bool) -> None:
        """Record that a target did not answer, or has refused a blob."""
        self._copies.note_failure(_pair(copy.sha256, copy.target), reason)
        if has_answered:
            self._targets.note_refusal(copy.target, copy.sha256, reason)
        else:
            self._targets.note_failure(copy.target, reason)

    def is_passed_over(self, copy: Copy) -> bool:
        """Return whether its target, or the blob, has failed since it was planned."""
        return (
            self._targets.is_resting(copy.target)
            or self._copies.is_resting(_pair(copy.sha256, copy.target))
            or self._blobs.is_resting(copy.sha256)
        )

    def eligible(self, facts: Facts, sha256: str) -> Facts:
        """Return the cluster without the nodes to skip for this blob now."""
        takers = [c for c in facts.candidates if self._takes(c.node_id, sha256)]
        return replace(facts, candidates=() if self._blobs.is_resting(sha256) else tuple(takers))

    def with_sources(self, copy: Copy) -> Copy:
        """Return the copy with the sources that have not failed lately; with all of them if each has."""
        if copy.needs_all:
            return copy
        awake = tuple(source for source in copy.sources if not self._sources.is_resting(source))
        return replace(copy, sources=awake or copy.sources)

    def sentences(self) -> dict[str, str]:
        """Return descriptions of failing nodes for an operator, by node."""
        found = {
            node_id: f"failed {count} times in a row to send its replicas to others ({reason})"
            for node_id, (count, reason) in self._sources.failing_keys().items()
        }
        for node_id, (count, reason) in self._targets.failing_keys().items():
            found[node_id] = f"failed {count} times in a row to create its assigned replicas ({reason})"
        return found

    def _takes(self, node_id: str, sha256: str) -> bool:
        """Return whether a node accepts a copy now; a failing node gets one attempt at a time."""
        if self._targets.is_resting(node_id) or self._copies.is_resting(_pair(sha256, node_id)):
            return False
        return not self._targets.failures(node_id) or not self._under_way[node_id]

    def _note_sources(self, copy: Copy, failed_sources: Collection[str]) -> None:
        for source in copy.sources:
            if source in failed_sources:
                self._sources.note_refusal(source, copy.sha256, f"{copy.target} got nothing from it")


def _pair(sha256: str, node_id: str) -> str:
    return f"{sha256} {node_id}"
