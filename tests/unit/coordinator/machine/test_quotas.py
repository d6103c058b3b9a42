"""What a quota bounds: files, what uploads under way have reserved, and what deleted files have left."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.storage.state_store import Store
from metadata.protocol import commands
from runtime.bounds import COUNT_MAX, TOTAL_BYTES_MAX
from tests.unit.coordinator.machine.test_uploads import sha256_of
from tests.unit.seeds import seeds
from tests.unit.state import ADMIN, HOUR_MS, Refusal, State, complete, create, create_bucket, dump

QUOTA = 100
MINUTE_MS = 60_000
NODES = ["n1", "n2", "n3"]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    """With the bucket b1, which has a quota."""
    made = State(tmp_path / "state.sqlite")
    made.nodes(*NODES)
    made.done(create_bucket(ADMIN, "b1", quota_bytes=QUOTA))
    yield made
    made.store.close()


def begin(state: State, file_uuid: str, size_bytes: int | None) -> Any:
    return state.apply(create(ADMIN, file_uuid, bucket_id="b1", size_bytes=size_bytes))


def progress(file_uuid: str, offset: int, *, reserve_bytes: int = 0) -> commands.RecordProgress:
    return commands.RecordProgress(
        caller=ADMIN,
        file_uuid=file_uuid,
        node_id="n1",
        offset_bytes=offset,
        prefix_sha256=sha256_of(bytes(offset)),
        reserve_bytes=reserve_bytes,
    )


def declare(file_uuid: str, size_bytes: int) -> commands.DeclareSize:
    return commands.DeclareSize(caller=ADMIN, file_uuid=file_uuid, size_bytes=size_bytes)


def delete(state: State, file_uuid: str) -> None:
    state.done(commands.DeleteFile(caller=ADMIN, file_uuid=file_uuid, kind=""))


def store(state: State, file_uuid: str, sha256: str, size_bytes: int) -> Any:
    """What its completion, or a refusal before that, comes to."""
    made = begin(state, file_uuid, size_bytes)
    if isinstance(made, Refusal):
        return made
    return state.apply(complete(ADMIN, file_uuid, sha256, NODES, size_bytes=size_bytes))


def change_quota(state: State, quota_bytes: int) -> None:
    state.done(commands.UpdateBucket(caller=ADMIN, bucket_id="b1", name=None, quota_bytes=quota_bytes))


def row(state: State, sql: str) -> tuple[Any, ...]:
    with closing(sqlite3.connect(state.path)) as db:
        found: tuple[Any, ...] = db.execute(sql).fetchone()
        return found


def taken(state: State) -> tuple[int, int, int]:
    """Used, reserved and released bytes of the bucket."""
    found = row(state, "SELECT used_bytes, reserved_bytes, released_bytes FROM buckets WHERE bucket_id='b1'")
    return found[0], found[1], found[2]


def test_of_three_uploads_of_most_of_a_quota_one_is_admitted(state: State) -> None:
    first, second, third = (begin(state, f"f{number}", 80) for number in range(3))
    assert (first["reserved_bytes"], second, third) == (80, "payload_too_large", "payload_too_large")
    assert "reserved 80" in second.details
    assert taken(state) == (0, 80, 0)


@pytest.mark.parametrize("end", ["complete", "terminate", "delete", "expire"])
def test_reservation_is_given_back_at_the_end_of_the_upload(state: State, end: str) -> None:
    begin(state, "f1", 80)
    if end == "complete":
        state.done(complete(ADMIN, "f1", "aa", NODES, size_bytes=80))
    elif end == "terminate":
        state.done(commands.TerminateUpload(caller=ADMIN, file_uuid="f1"))
    elif end == "delete":
        delete(state, "f1")
    else:
        state.at_ms += 25 * HOUR_MS
        state.done(commands.Expire(rows_max=10))
    assert taken(state) == (80 if end == "complete" else 0, 0, 0)
    assert isinstance(begin(state, "f2", 80), Refusal) == (end == "complete")


def test_size_is_reserved_when_it_is_declared(state: State) -> None:
    for file_uuid in ("f1", "f2"):
        assert begin(state, file_uuid, None)["reserved_bytes"] == 0
    assert state.done(declare("f1", 80))["reserved_bytes"] == 80
    assert state.apply(declare("f2", 80)) == "payload_too_large"
    assert state.done(declare("f2", 20))["reserved_bytes"] == 20
    assert taken(state) == (0, QUOTA, 0)


def test_upload_of_unknown_size_reserves_what_it_holds_or_asks_for(state: State) -> None:
    for file_uuid in ("f1", "f2"):
        begin(state, file_uuid, None)
    assert state.done(progress("f1", 30))["reserved_bytes"] == 30
    assert state.done(progress("f1", 30, reserve_bytes=70))["reserved_bytes"] == 70
    assert state.done(progress("f1", 40))["reserved_bytes"] == 70
    assert state.apply(progress("f2", 31)) == "payload_too_large"
    assert state.apply(progress("f2", 0, reserve_bytes=31)) == "payload_too_large"
    assert state.done(progress("f2", 30))["reserved_bytes"] == 30
    assert taken(state) == (0, QUOTA, 0)
    state.done(declare("f1", 50))  # it will have exactly that
    assert taken(state) == (0, 80, 0)
    assert state.apply(complete(ADMIN, "f2", "aa", NODES, size_bytes=51)) == "payload_too_large"
    state.done(complete(ADMIN, "f2", "aa", NODES, size_bytes=50))
    assert taken(state) == (50, 50, 0)


def test_what_was_recorded_stays_and_is_completed_though_the_quota_was_lowered(state: State) -> None:
    begin(state, "f1", None)
    state.done(progress("f1", 60))
    change_quota(state, 50)
    assert state.done(progress("f1", 60))["offset_bytes"] == 60  # nothing more
    assert state.apply(progress("f1", 61)) == "payload_too_large"
    assert state.apply(complete(ADMIN, "f1", "aa", NODES, size_bytes=60)) == "payload_too_large"
    change_quota(state, 60)
    state.done(complete(ADMIN, "f1", "aa", NODES, size_bytes=60))


def test_upload_that_is_placed_or_begun_anew_keeps_its_reservation(state: State) -> None:
    state.nodes("n4")
    begin(state, "f1", None)
    state.done(progress("f1", 60))
    moved = commands.PlaceUpload(file_uuid="f1", placement=["n4", "n2", "n3"], epoch=0, offset_bytes=60)
    state.done(moved)
    assert taken(state) == (0, 60, 0)
    lost = msgspec.structs.replace(moved, epoch=1, is_lost=True, lost=["n4", "n2", "n3"])
    state.apply(lost)
    assert (taken(state), row(state, "SELECT reserved_bytes FROM uploads")) == ((0, 60, 0), (60,))
    delete(state, "f1")
    assert taken(state) == (0, 0, 0)


def test_bucket_that_gets_a_quota_counts_the_uploads_under_way(state: State) -> None:
    change_quota(state, 0)
    begin(state, "f1", 30)
    begin(state, "f2", None)
    state.done(progress("f2", 20))
    assert "reserved_bytes" not in state.done(progress("f2", 20))  # there is nothing to go by
    change_quota(state, QUOTA)
    assert taken(state) == (0, 50, 0)
    assert begin(state, "f3", 51) == "payload_too_large"
    assert state.done(progress("f2", 20))["reserved_bytes"] == 20
    delete(state, "f1")
    assert taken(state) == (0, 20, 0)


def test_sizes_that_nobody_can_have_never_overflow_a_column(state: State) -> None:
    """An entry that cannot be applied would end every coordinator."""
    change_quota(state, 0)
    for number in range(1030):
        begin(state, f"f{number}", None)
        state.done(declare(f"f{number}", COUNT_MAX))
    assert taken(state) == (0, TOTAL_BYTES_MAX, 0)
    change_quota(state, COUNT_MAX)
    assert begin(state, "more", 1) == "payload_too_large"
    for number in range(1030):
        delete(state, f"f{number}")
    assert taken(state) == (0, 0, 0)


def test_content_of_deleted_files_counts_until_it_is_collected(state: State) -> None:
    store(state, "f1", "aa", 60)
    delete(state, "f1")
    assert taken(state) == (0, 0, 60)
    state.done(commands.Collect(grace_ms=0))
    assert taken(state) == (0, 0, 0)


def test_content_that_another_file_refers_to_counts_for_nobody(state: State) -> None:
    for file_uuid in ("f1", "f2"):
        store(state, file_uuid, "aa", 40)
    delete(state, "f1")
    assert taken(state) == (40, 0, 0)
    delete(state, "f2")
    assert taken(state) == (0, 0, 40)
    store(state, "f3", "aa", 40)  # it is taken up again
    assert taken(state) == (40, 0, 0)


def test_loop_of_upload_and_deletion_ends_at_twice_the_quota(state: State) -> None:
    for number in range(2):
        store(state, f"f{number}", f"c{number}", 90)
        delete(state, f"f{number}")
    assert store(state, "f2", "c2", 90) == "rate_limited"
    assert taken(state) == (0, 0, 180)
    early = commands.CollectOverQuota(rows_max=100, grace_ms=15 * MINUTE_MS)
    assert state.done(early)["blobs"] == 0  # nothing is that old
    state.at_ms += 15 * MINUTE_MS
    assert state.store.is_over_quota(at_ms=state.at_ms, grace_ms=15 * MINUTE_MS)
    assert state.done(early)["blobs"] == 1  # the longest released; the other one is within the quota
    assert not state.store.is_over_quota(at_ms=state.at_ms, grace_ms=15 * MINUTE_MS)
    assert taken(state) == (0, 0, 90)
    assert store(state, "f2", "c2", 90)["file"]["status"] == "available"


def test_early_collection_leaves_buckets_alone_that_are_within_their_quota(state: State) -> None:
    state.done(create_bucket(ADMIN, "free"))
    state.done(create(ADMIN, "g1", bucket_id="free", size_bytes=500))
    state.done(complete(ADMIN, "g1", "gg", NODES, size_bytes=500))
    delete(state, "g1")
    store(state, "f1", "aa", QUOTA)
    delete(state, "f1")
    state.at_ms += HOUR_MS
    assert state.done(commands.CollectOverQuota(rows_max=100, grace_ms=0))["blobs"] == 0


def test_content_that_a_node_spares_counts_once_more(state: State) -> None:
    store(state, "f1", "aa", 60)
    delete(state, "f1")
    state.done(commands.Collect(grace_ms=0))
    for node_id in ("n1", "n2"):
        listed = state.log_index
        state.done(commands.ReportDropped(node_id=node_id, as_of=listed, spared=["aa"]))
        assert taken(state) == (0, 0, 60)
    state.done(commands.Collect(grace_ms=0))
    for node_id in NODES:
        state.done(commands.ReportDropped(node_id=node_id, as_of=state.log_index, dropped=["aa"]))
    assert taken(state) == (0, 0, 0)
    assert row(state, "SELECT COUNT(*) FROM blobs") == (0,)


def test_content_that_every_node_has_lost_counts_no_more(state: State) -> None:
    store(state, "f1", "aa", 60)
    delete(state, "f1")
    for node_id in NODES:
        state.done(commands.ReportLost(node_id=node_id, sha256s=["aa"], reason="missing"))
    assert taken(state) == (0, 0, 0)


@pytest.mark.parametrize("seed", seeds(range(3), range(3, 8)))
def test_sums_are_what_they_sum_up_after_random_commands(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    state = State(tmp_path / "state.sqlite")
    state.nodes(*NODES)
    state.done(create_bucket(ADMIN, "b1", quota_bytes=QUOTA))
    for number in range(250):
        step(state, dice, f"f{number}", f"f{dice.randrange(number + 1)}")
        used, reserved, released = taken(state)
        assert used == (row(state, "SELECT SUM(size_bytes) FROM files WHERE status = 'available'")[0] or 0)
        assert reserved == (row(state, "SELECT SUM(reserved_bytes) FROM uploads")[0] or 0)
        waiting = "reference_count = 0 AND collected_at IS NULL AND released_by <> ''"
        assert released == (row(state, f"SELECT SUM(size_bytes) FROM blobs WHERE {waiting}")[0] or 0)
    again = Store(tmp_path / "again.sqlite")
    again.apply(state.entries)
    again.close()
    state.store.close()
    assert dump(tmp_path / "again.sqlite") == dump(state.path)


def step(state: State, dice: random.Random, new: str, old: str) -> None:
    """One command, which may be refused."""
    sha256 = f"c{dice.randrange(5)}"
    size_bytes = 10 + 5 * int(sha256[1:])
    one_node = dice.choice(NODES)
    listed: Any = {"node_id": one_node, "as_of": state.log_index}
    choices: list[commands.AnyCommand] = [
        create(ADMIN, new, bucket_id="b1", size_bytes=dice.choice((None, size_bytes))),
        create(ADMIN, new, bucket_id="b1", size_bytes=size_bytes),
        complete(ADMIN, old, sha256, NODES, size_bytes=size_bytes),
        complete(ADMIN, old, sha256, NODES, size_bytes=size_bytes),
        commands.DeleteFile(caller=ADMIN, file_uuid=old, kind=""),
        declare(old, size_bytes),
        progress(old, dice.randrange(40), reserve_bytes=dice.choice((0, 30))),
        commands.UpdateBucket(
            caller=ADMIN, bucket_id="b1", name=None, quota_bytes=dice.choice((0, 60, QUOTA))
        ),
        commands.Collect(grace_ms=0),
        commands.CollectOverQuota(rows_max=4, grace_ms=0),
        commands.ReportDropped(**listed, dropped=[sha256]),
        commands.ReportDropped(**listed, spared=[sha256]),
        commands.ReportLost(node_id=one_node, sha256s=[sha256], reason="missing"),
        commands.ReportOrphans(node_id=one_node, sha256s=[sha256]),
    ]
    state.apply(dice.choice(choices))


def test_orphans_are_what_no_file_refers_to_and_the_node_is_not_named_for(state: State) -> None:
    store(state, "f1", "aa", 10)
    store(state, "f2", "bb", 10)
    delete(state, "f2")
    asked = ["aa", "bb", "cc"]
    assert state.done(commands.ReportOrphans(node_id="n1", sha256s=asked)) == ["cc"]
    state.nodes("n4")
    assert state.done(commands.ReportOrphans(node_id="n4", sha256s=asked)) == ["bb", "cc"]


def test_completion_that_saw_an_orphan_before_it_was_told_is_refused(state: State) -> None:
    seen = begin(state, "f1", 10)["as_of"]
    whole = complete(ADMIN, "f1", "aa", ["n1", "n2"], size_bytes=10)
    state.done(commands.ReportOrphans(node_id="n1", sha256s=["aa"]))
    assert state.apply(msgspec.structs.replace(whole, as_of=seen)) == "unavailable"
    state.done(msgspec.structs.replace(whole, as_of=state.log_index))
    assert state.done(commands.ReportOrphans(node_id="n1", sha256s=["aa"])) == []
