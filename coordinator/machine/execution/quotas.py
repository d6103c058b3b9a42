"""The bytes that a bucket's quota limits: finished files, uploads in progress, deleted files on disks.

    used_bytes      finished files, each for itself
    reserved_bytes  what its uploads may have: the declared size, else what was recorded or asked for
    released_bytes  content that no file refers to any more and that waits for gc; it counts for the bucket
                    of the last file that did

An upload grows only while used and reserved bytes stay within the quota, and all three within twice that: so
a loop of upload and deletion takes no more of the disks than twice the quota. Beyond the quota itself what
was released goes early (`blobs.collect_over_quota`). The sums are right without a quota too, so that one that
is set later is in force at once.
"""

import sqlite3

from ca.errors import PayloadTooLarge, RateLimited
from runtime.bounds import TOTAL_BYTES_MAX

# What the index `buckets_over_quota` holds: the words must be the same.
OVER_QUOTA = "quota_bytes > 0 AND used_bytes + reserved_bytes + released_bytes > quota_bytes"


def require_room(db: sqlite3.Connection, bucket_id: str, more_bytes: int) -> None:
    """Raises an error when the bucket's quota leaves no room for `more_bytes`.

    PayloadTooLarge when there is none; RateLimited when there will be, once deleted content has left the
    disks. 0 asks whether the bucket has more already than it may.
    """
    quota_bytes, used_bytes, reserved_bytes, released_bytes = db.execute(
        "SELECT quota_bytes, used_bytes, reserved_bytes, released_bytes FROM buckets WHERE bucket_id = ?",
        (bucket_id,),
    ).fetchone()
    if not quota_bytes:
        return
    taken_bytes = used_bytes + reserved_bytes + more_bytes
    if taken_bytes > quota_bytes:
        raise PayloadTooLarge(
            f"The quota of the bucket is {quota_bytes} bytes: {used_bytes} are used, and uploads under way"
            f" have reserved {reserved_bytes}."
        )
    if taken_bytes + released_bytes > 2 * quota_bytes:
        raise RateLimited(
            f"{released_bytes} bytes of deleted files are still on the disks, and the quota of the bucket is"
            f" {quota_bytes}: they go within minutes. Try again then."
        )


def grant(db: sqlite3.Connection, bucket_id: str, wanted_bytes: int) -> int:
    """How many of `wanted_bytes` can be reserved: all of them, as long as the sum fits into a column."""
    (reserved_bytes,) = db.execute(
        "SELECT reserved_bytes FROM buckets WHERE bucket_id = ?", (bucket_id,)
    ).fetchone()
    return int(min(wanted_bytes, TOTAL_BYTES_MAX - reserved_bytes))


def quota_of(db: sqlite3.Connection, bucket_id: str) -> int:
    """The quota of a bucket, 0 for none."""
    row = db.execute("SELECT quota_bytes FROM buckets WHERE bucket_id = ?", (bucket_id,)).fetchone()
    return int(row[0])


def of_upload(db: sqlite3.Connection, file_uuid: str) -> int:
    """Return the bytes that an upload has reserved; 0 for none, and after its end."""
    row = db.execute("SELECT reserved_bytes FROM uploads WHERE file_uuid = ?", (file_uuid,)).fetchone()
    return 0 if row is None else int(row[0])


def add_reserved(db: sqlite3.Connection, bucket_id: str, more_bytes: int) -> None:
    """Add to what is reserved in the bucket; a negative number takes from it."""
    if more_bytes:
        db.execute(
            "UPDATE buckets SET reserved_bytes = reserved_bytes + ? WHERE bucket_id = ?",
            (more_bytes, bucket_id),
        )


def release(db: sqlite3.Connection, sha256: str, bucket_id: str, size_bytes: int) -> None:
    """Count a blob as released by this bucket: the last file that referred to it has gone from there."""
    db.execute("UPDATE blobs SET released_by = ? WHERE sha256 = ?", (bucket_id, sha256))
    _add_released(db, bucket_id, size_bytes)


def take_back(db: sqlite3.Connection, sha256: str) -> None:
    """Count a blob as released no more: a file refers to it again, or is about to."""
    row = db.execute(
        "SELECT released_by, size_bytes, collected_at FROM blobs WHERE sha256 = ? AND released_by <> ''",
        (sha256,),
    ).fetchone()
    if row is not None:
        db.execute("UPDATE blobs SET released_by = '' WHERE sha256 = ?", (sha256,))
        gone(db, *row)


def collect(db: sqlite3.Connection, sha256: str) -> None:
    """Count a blob as released no more: it is about to be marked for deletion, and its nodes delete it."""
    row = db.execute(
        "SELECT released_by, size_bytes, collected_at FROM blobs WHERE sha256 = ?", (sha256,)
    ).fetchone()
    gone(db, *row)


def spare(db: sqlite3.Connection, sha256: str) -> None:
    """Count a spared blob as released again if no file refers to it: it waits for gc once more."""
    row = db.execute(
        "SELECT released_by, size_bytes FROM blobs"
        " WHERE sha256 = ? AND reference_count = 0 AND collected_at IS NOT NULL",
        (sha256,),
    ).fetchone()
    if row is not None:
        _add_released(db, *row)


def gone(db: sqlite3.Connection, released_by: str, size_bytes: int, collected_at: int | None) -> None:
    """Count a blob with these columns as released no more: it does not wait for gc."""
    if collected_at is None:
        _add_released(db, released_by, -size_bytes)


def over(db: sqlite3.Connection) -> list[tuple[str, int]]:
    """The buckets that have more on the disks than their quota, each with how much more; by id."""
    rows: list[tuple[str, int]] = db.execute(
        "SELECT bucket_id, used_bytes + reserved_bytes + released_bytes - quota_bytes FROM buckets"
        f" WHERE {OVER_QUOTA} ORDER BY bucket_id"
    ).fetchall()
    return rows


def _add_released(db: sqlite3.Connection, bucket_id: str, more_bytes: int) -> None:
    """Add to the released bytes of a bucket, if there is one: it may be gone, and "" is none.

    The bounds are for what only a lying node could report.
    """
    if bucket_id and more_bytes:
        db.execute(
            "UPDATE buckets SET released_bytes = MAX(0, MIN(released_bytes + ?, ?)) WHERE bucket_id = ?",
            (more_bytes, TOTAL_BYTES_MAX, bucket_id),
        )
