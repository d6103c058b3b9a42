"""What a node keeps, and what it must not: leases, blocks, reads under way, bounds."""

import pytest

from metadata.model.records import Caller, ContentRecord
from metadata.protocol.calls import FollowReply
from node.base.record_store import CachedRecords, PendingRead
from tests.unit.file_records import available_file

ALICE, BOB = Caller("alice", 1), Caller("bob", 1)
LEASE_S = 1.8


def record(file_uuid: str = "f", *, bucket_id: str = "b", is_lasting: bool = True) -> ContentRecord:
    file = available_file(
        file_uuid=file_uuid, bucket_id=bucket_id, owner_id="alice", size_bytes=1, blob_sha256="00"
    )
    return ContentRecord(file=file, replicas=["n1"], is_lasting=is_lasting)


class Node:
    """A cache, and the clock that it is asked at."""

    def __init__(self, records_max: int = 100) -> None:
        self.records = CachedRecords(records_max=records_max)
        self.at_s = 100.0

    def receive(
        self, *blocked: str, version: int = 1, term: int = 3, lease_s: float = LEASE_S, late_s: float = 0.0
    ) -> None:
        reply = FollowReply(term, version, list(blocked), lease_s)
        self.records.follow(reply, sent_at_s=self.at_s - late_s, now_s=self.at_s)

    def begin(self) -> PendingRead:
        reading = self.records.begin(now_s=self.at_s)
        assert reading is not None
        return reading

    def keep(self, reading: PendingRead, caller: Caller = ALICE, found: ContentRecord | None = None) -> bool:
        return self.records.keep(reading, caller, found or record(), now_s=self.at_s)

    def fill(self, caller: Caller = ALICE, found: ContentRecord | None = None) -> bool:
        reading = self.begin()
        kept = self.keep(reading, caller, found)
        self.records.end(reading)
        return kept

    def has(self, caller: Caller = ALICE, file_uuid: str = "f") -> bool:
        return self.records.get(caller, file_uuid, now_s=self.at_s) is not None


@pytest.fixture
def node() -> Node:
    """One with a lease."""
    made = Node()
    made.receive()
    return made


def test_nothing_is_kept_without_a_lease() -> None:
    node = Node()

    assert node.records.begin(now_s=node.at_s) is None


def test_record_is_answered_to_its_reader_of_the_same_generation_only(node: Node) -> None:
    assert node.fill(ALICE)

    assert node.has(ALICE)
    assert node.has(Caller("alice", 1, "another token"))
    assert not node.has(Caller("alice", 2))
    assert not node.has(BOB)
    assert not node.has(ALICE, "other")


def test_record_is_answered_to_the_session_that_has_read_it_only(node: Node) -> None:
    assert node.fill(Caller("alice", 1, session="s1"))
    assert node.has(Caller("alice", 1, "another token", "s1"))
    assert not node.has(Caller("alice", 1, session="s2"))
    assert not node.has(Caller("alice", 1))


def test_record_that_ends_by_time_is_not_kept(node: Node) -> None:
    assert not node.fill(found=record(is_lasting=False))
    assert not node.has()


def test_lease_counts_from_when_the_call_was_sent(node: Node) -> None:
    node.fill()
    node.receive(version=2, late_s=0.5)

    node.at_s += LEASE_S - 0.01
    assert node.has()  # by the first
    node = Node()
    node.receive(late_s=0.5)
    node.fill()
    node.at_s += LEASE_S - 0.5
    assert not node.has()


def test_lapse_forgets_everything_even_if_the_next_lease_comes(node: Node) -> None:
    node.fill()
    node.at_s += LEASE_S
    assert not node.has()

    node.receive(version=2)

    assert not node.has()
    assert len(node.records) == 0


def test_answer_that_comes_after_its_own_lease_gives_none(node: Node) -> None:
    node.at_s += 10
    node.receive(version=2, late_s=LEASE_S)

    assert node.records.begin(now_s=node.at_s) is None


def test_another_term_forgets_everything(node: Node) -> None:
    node.fill()
    reading = node.begin()

    node.receive(term=4)

    assert not node.has()
    assert not node.keep(reading)


@pytest.mark.parametrize("key", ["file:f", "user:alice", "bucket:b", "*"])
def test_blocked_key_drops_the_record(node: Node, key: str) -> None:
    node.fill()

    node.receive(key, version=2)

    assert not node.has()


@pytest.mark.parametrize("key", ["file:other", "user:bob", "bucket:c"])
def test_block_of_another_key_leaves_the_record(node: Node, key: str) -> None:
    node.fill()

    node.receive(key, version=2)

    assert node.has()


def test_record_is_not_kept_while_its_key_is_blocked(node: Node) -> None:
    node.receive("file:f", version=2)
    assert not node.fill()

    node.receive(version=3)

    assert node.fill()


def test_read_during_which_its_key_was_blocked_is_not_kept_after_the_block(node: Node) -> None:
    before = node.begin()
    node.receive("file:f", version=2)
    during = node.begin()
    node.receive(version=3)

    assert not node.keep(before)
    assert not node.keep(during)
    assert not node.has()


def test_read_that_began_before_a_lapse_is_not_kept_after_it(node: Node) -> None:
    reading = node.begin()
    node.at_s += LEASE_S
    node.receive(version=2)

    assert not node.keep(reading)


def test_news_without_a_lease_prolongs_nothing(node: Node) -> None:
    node.fill()
    node.at_s += 1.0
    node.receive(version=2, lease_s=0.0)
    assert node.has()

    node.at_s += LEASE_S - 1.0

    assert not node.has()


def test_forgotten_file_is_asked_for_again_also_by_reads_under_way(node: Node) -> None:
    node.fill()
    reading = node.begin()

    node.records.forget("f")

    assert not node.has()
    assert not node.keep(reading)
    assert node.fill()


def test_longest_unused_record_goes_first() -> None:
    node = Node(records_max=2)
    node.receive()
    node.fill(found=record("a")), node.fill(found=record("b"))
    assert node.has(file_uuid="a")

    node.fill(found=record("c"))

    assert node.has(file_uuid="a")
    assert not node.has(file_uuid="b")
    assert len(node.records) == 2


def test_record_that_is_kept_again_counts_once(node: Node) -> None:
    node.fill(), node.fill()

    assert len(node.records) == 1
    node.receive("file:f", version=2)
    assert len(node.records) == 0
