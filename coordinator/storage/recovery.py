"""Recover the log's files after any crash: the index, the hard state, and the end for new writes.

The newest base segment begins the log and older files are void. A missing beginning is compaction, a gap is
damage. A torn tail is cut only in the last segment; elsewhere an invalid record is damage. Everything that
this start relies on is durable when it returns, as the previous process may have died before its sync. That
sync may even have failed: then the kernel returns bytes that never reached the disk, and considers them
written. So all bytes that no batch declares as synced are written once more.

Tested by tests/unit/coordinator/storage/test_log_crashes.py.
"""

from dataclasses import dataclass

from coordinator.raft.messages import HardState
from coordinator.storage import segment as form
from coordinator.storage.log_directory import Directory, File
from coordinator.storage.raft_log_index import LogIndex, Segment
from coordinator.storage.segment import HeaderFlag, LogDamaged, Record, RecordKind, SegmentHeader
from runtime.disk import NO_ROOM_ERRORS


@dataclass(slots=True)
class RecoveredLog:
    """The result of recovery in addition to the index.

    `end_bytes`: the position of the next record in the last segment; `synced_bytes` of these are known to
    have been synced.
    """

    hard_state: HardState
    end_bytes: int
    synced_bytes: int = form.HEADER_BYTES


def recover(directory: Directory, index: LogIndex, segment_bytes: int) -> RecoveredLog:
    """Fill `index`, which stays empty if there is no log yet, and remove void files.

    The last segment is cut to its intact part and preallocated again to `segment_bytes`. Raises LogDamaged or
    OSError; after damage every file is unchanged.
    """
    names = directory.names()
    recovered = RecoveredLog(HardState(), 0)
    opened: list[Segment] = []
    try:
        _open_since_base(directory, [name for name in names if name.endswith(form.SEGMENT_SUFFIX)], opened)
        for each in reversed(opened):
            _follow(index, each)
            _replay(index, each, recovered, is_last=each is opened[0])
        if opened:
            _settle_tail(opened[0].file, recovered, segment_bytes)
    except BaseException:
        index.segments.clear()
        for each in opened:
            each.file.close()
        raise
    live = {each.name for each in index.segments}
    for each in opened:
        if each.name not in live:
            each.file.close()
    directory.sync()
    for name in names:
        if name.endswith((form.SEGMENT_SUFFIX, form.UNFINISHED_SUFFIX)) and name not in live:
            directory.remove(name)
            # Each, oldest first: a lost file after an existing older one would look like a gap.
            directory.sync()
    return recovered


def _open_since_base(directory: Directory, names: list[str], opened: list[Segment]) -> None:
    """Open the segments from the newest back to the newest base, or all."""
    for name in reversed(names):
        file = directory.open(name)
        path = directory.path(name)
        unread = SegmentHeader(0, 1, 0, bytes(form.MARKER_BYTES))
        each = Segment(name, path, file, unread, 1)
        opened.append(each)
        each.header = form.decode_header(file.read(0, form.HEADER_BYTES), path)
        each.first = each.header.first_index
        if name != form.segment_name(each.header.sequence):
            raise LogDamaged(path, 0, f"this is segment {each.header.sequence} by its header")
        if HeaderFlag.BASE in each.header.flags:
            return


def _follow(index: LogIndex, each: Segment) -> None:
    """Add the next segment to the index, if it can be the next."""
    header = each.header
    if not index.segments:
        index.restart(each)
        return
    if header.sequence != index.segments[-1].header.sequence + 1 or header.first_index > index.last + 1:
        what = "the segment does not follow the one before; a file is missing or was added"
        raise LogDamaged(each.path, 0, what)
    if header.first_index <= index.first:  # this one voids what a crash during compaction left
        index.restart(each)
        return
    if header.previous_term != index.term(header.first_index - 1):
        raise LogDamaged(each.path, 0, "the entry before the segment has another term")
    index.begin(each)


def _replay(index: LogIndex, each: Segment, recovered: RecoveredLog, *, is_last: bool) -> None:
    """Read the records of the last segment in the index."""
    data = each.file.read(0, each.file.size_bytes())
    end = recovered.synced_bytes = form.HEADER_BYTES
    for record in form.read_records(data, end):
        if not _replay_record(index, each.header, record, recovered):
            raise LogDamaged(each.path, record.offset, "a record has a correct checksum but invalid content")
        end = record.end
    if not is_last and end != len(data):
        raise LogDamaged(each.path, end, "a record does not match its checksum, and later segments exist")
    if form.is_damage(data, end, each.header.marker):
        raise LogDamaged(each.path, end, "a synced record does not match its checksum")
    if is_last and data.count(0, end) != len(data) - end:
        each.file.truncate(end)
    each.size_bytes = recovered.end_bytes = end


def _replay_record(index: LogIndex, header: SegmentHeader, record: Record, recovered: RecoveredLog) -> bool:
    """Apply a record; return False if it is impossible at its place."""
    match record.kind:
        case RecordKind.BATCH:
            recovered.synced_bytes = form.synced_bytes(record)
            return record.payload.startswith(header.marker)
        case RecordKind.HARD_STATE:
            hard_state = form.decode_hard_state(record.payload)
            recovered.hard_state = hard_state or recovered.hard_state
            return hard_state is not None
        case RecordKind.TRUNCATE:
            void = form.decode_truncate(record.payload)
            if void is None or not header.first_index <= void <= index.last + 1:
                return False
            index.truncate(void)
            return True
        case RecordKind.ENTRY:
            entry = form.decode_entry(record.payload)
            if entry is None or entry.index != index.last + 1:
                return False
            index.segments[-1].add(record.offset, record.end - record.offset, entry.term)
            index.last = entry.index
            return True
    return False


def _settle_tail(file: File, found: RecoveredLog, segment_bytes: int) -> None:
    """Make the found content durable. Reads also work without room for the rest of the segment."""
    try:
        file.allocate(max(segment_bytes, found.end_bytes))
    except OSError as error:
        if error.errno not in NO_ROOM_ERRORS:
            raise
    file.write(found.synced_bytes, file.read(found.synced_bytes, found.end_bytes - found.synced_bytes))
    file.sync()
