"""The bytes that a bucket's quota limits: finished files, uploads in progress, deleted files on disks.

    used_bytes      finished files, each counted separately
    reserved_bytes  the room of its uploads: the declared size, otherwise the recorded or requested bytes
    released_bytes  content without a file that waits for gc; counted for the bucket of its last file

An upload grows only while used and reserved bytes stay within the quota, and all three within twice that. So
a loop of upload and deletion uses at most twice the quota on the disks, and once more in the trash. Beyond
the quota itself, released content is collected early (`blobs.collect_over_quota`). The sums are maintained
without a quota too, so that a new quota applies at once.
"""

import sqlite3

from ca.errors import PayloadTooLarge, RateLimited
from runtime.bounds import TOTAL_BYTES_MAX

# The condition of the index `buckets_over_quota`: the words must be the same.
OVER_QUOTA = "quota_bytes > 0 AND used_bytes + reserved_bytes + released_bytes > quota_bytes"


def require_room(db: sqlite3.Connection, bucket_id: str, more_bytes: int) -> None:
    """Raise an error if the bucket's quota leaves no room for `more_bytes`.

    PayloadTooLarge if there is none; RateLimited if there will be, once deleted content has left the disks. 0
    asks whether the bucket already exceeds its quota.
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
    """Return how many of `wanted_bytes` can be reserved.

    All of them can, as long as the sum fits into a column.
    """
    (reserved_bytes,) = db.execute(
        "SELECT reserved_bytes FROM buckets WHERE bucket_id = ?", (bucket_id,)
    ).fetchone()
    return int(min(wanted_bytes, TOTAL_BYTES_MAX - reserved_bytes))


def quota_of(db: sqlite3.Connection, bucket_id: str) -> int:
    """Return the quota of a bucket, 0 for none."""
    row = db.execute("SELECT quota_bytes FROM buckets WHERE bucket_id = ?", (bucket_id,)).fetchone()
    return int(row[0])


def of_upload(db: sqlite3.Connection, file_uuid: str) -> int:
    """Return the bytes that an upload has reserved; 0 for none, and after its end."""
    row = db.execute("SELECT reserved_bytes FROM uploads WHERE file_uuid = ?", (file_uuid,)).fetchone()
    return 0 if row is None else int(row[0])


def add_reserved(db: sqlite3.Connection, bucket_id: str, more_bytes: int) -> None:
    """Add to the reserved bytes of the bucket; the number may be negative."""
    if more_bytes:
        db.execute(
            "UPDATE buckets SET reserved_bytes = reserved_bytes + ? WHERE bucket_id = ?",
            (more_bytes, bucket_id),
        )


def release(db: sqlite3.Connection, sha256: str, bucket_id: str, size_bytes: int) -> None:
    """Count a blob as released by this bucket, which had the last file that referred to it."""
    db.execute("UPDATE blobs SET released_by = ? WHERE sha256 = ?", (bucket_id, sha256))
    _add_released(db, bucket_id, size_bytes)


def take_back(db: sqlite3.Connection, sha256: str) -> None:
    """No longer count a blob as released: a file refers to it again, or is about to."""
    row = db.execute(
        "SELECT released_by, size_bytes, collected_at FROM blobs WHERE sha256 = ? AND released_by <> ''",
        (sha256,),
    ).fetchone()
    if row is not None:
        db.execute("UPDATE blobs SET released_by = '' WHERE sha256 = ?", (sha256,))
        uncount_released(db, *row)


def collect(db: sqlite3.Connection, sha256: str) -> None:
    """No longer count a blob as released: it is about to be marked for deletion, and its nodes delete it."""
    row = db.execute(
        "SELECT released_by, size_bytes, collected_at FROM blobs WHERE sha256 = ?", (sha256,)
    ).fetchone()
    uncount_released(db, *row)


def spare(db: sqlite3.Connection, sha256: str) -> None:
    """Count a spared blob as released again if no file refers to it: it waits for gc once more."""
    row = db.execute(
        "SELECT released_by, size_bytes FROM blobs"
        " WHERE sha256 = ? AND reference_count = 0 AND collected_at IS NOT NULL",
        (sha256,),
    ).fetchone()
    if row is not None:
        _add_released(db, *row)


def uncount_released(
    db: sqlite3.Connection, released_by: str, size_bytes: int, collected_at: int | None
) -> None:
    """No longer count a blob with these columns as released: it does not wait for gc."""
    if collected_at is None:
        _add_released(db, released_by, -size_bytes)


def over(db: sqlite3.Connection) -> list[tuple[str, int]]:
    """Return the buckets that use more on the disks than their quota, each with the excess; by id."""
    rows: list[tuple[str, int]] = db.execute(
        "SELECT bucket_id, used_bytes + reserved_bytes + released_bytes - quota_bytes FROM buckets"
        f" WHERE {OVER_QUOTA} ORDER BY bucket_id"
    ).fetchall()
    return rows


def _add_released(db: sqlite3.Connection, bucket_id: str, more_bytes: int) -> None:
    """Add to the released bytes of a bucket, if it exists: it may be gone, and "" is none.

    The bounds only matter for reports of a lying node.
    """
    if bucket_id and more_bytes:
        db.execute(
            "UPDATE buckets SET released_bytes = MAX(0, MIN(released_bytes + ?, ?)) WHERE bucket_id = ?",
            (more_bytes, TOTAL_BYTES_MAX, bucket_id),
        )
