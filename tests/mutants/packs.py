"""The deliberate bugs of the packs of a node: a power cut shows them, damage, or whoever opens them anew.

Of syncs that another one behind them makes up for there is none: nothing could tell that they are missing.
"""

from tests.mutants.mutant import Mutant

_PACKS = "tests/unit/node/packs"
_STORE = f"{_PACKS}/test_pack_store.py::test_"
CUT = f"{_PACKS}/test_pack_power_loss.py::test_what_was_stored_is_there_and_what_was_removed_is_not"
COMES_BACK = f"{_PACKS}/test_pack_power_loss.py::test_pack_that_comes_back_brings_nothing_back_with_it"
CUT_LEFT, CUT_LOST = f"{CUT}[1-index left]", f"{CUT}[1-index lost]"
REMOVED = f"{_STORE}removed_blob_is_not_found_whoever_opens_the_packs[False]"
DAMAGED = f"{_STORE}damage_costs_one_blob"
FORGED = f"{_STORE}content_that_ends_like_a_pack_hides_no_other"
OUTLIVES = f"{_STORE}removal_outlives_the_pack_that_it_was_written_to"
UNREAD = f"{_STORE}removal_that_could_not_be_read_is_read_by_the_next_who_opens"
UNDONE = f"{_STORE}removal_that_is_known_is_not_undone_by_reading_a_pack_once_more"
LEFT = f"{_PACKS}/test_pack_power_loss.py::test_what_a_process_finds_that_another_has_left_is_durable[4]"
_HEADERS = f"{_PACKS}/test_pack_headers.py::test_"
BEHIND = f"{_PACKS}/test_index_behind.py"
IN_USE = f"{_STORE}pack_that_another_process_appends_to_is_not_rewritten"
SEALED = f"{_STORE}pack_that_takes_no_more_carries_its_index"
FAILED = f"{_STORE}sync_that_fails_fails_all_of_its_blobs_and_no_other"

_FILE, _STORE_FILE = "node/packs/pack_file.py", "node/packs/store.py"
_CATCHING_UP = "node/packs/catching_up.py"
_RECORD_FILE, _INDEX_FILE = "node/packs/record.py", "node/packs/index.py"
_SYNC = """\
        self._disk.fdatasync(self._descriptor)
        if not os.fstat"""
_STORED = """\
            self.index.store(writer.number, records, stop=writer.durable_offset, at_ns=time.time_ns())
"""


def _of(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, ((file, old, new),), tests)


PACKS = (
    _of("records of a pack not synced", _FILE, _SYNC, "        if not os.fstat", CUT_LEFT),
    _of(
        "name of a pack not synced",
        _FILE,
        "            disk.fsync(self._descriptor)\n            disk.fsync(directory)\n",
        "            disk.fsync(self._descriptor)\n",
        CUT_LEFT,
    ),
    Mutant(
        "row of a blob before its record is synced",
        (
            (_FILE, _SYNC, "        if not os.fstat"),
            (_STORE_FILE, _STORED, f"{_STORED}            self._disk.fdatasync(writer._descriptor)\n"),
        ),
        (CUT_LEFT,),
    ),
    _of(
        "pack appended to after a sync that failed",
        _FILE,
        "        assert not self.is_broken\n        self.is_broken = True\n        buffer",
        "        buffer",
        FAILED,
    ),
    _of(
        "removal not recorded",
        _STORE_FILE,
        "                self._append_removals([(each.sha256, each.place) for each in removed])\n",
        "                pass\n",
        REMOVED,
    ),
    _of(
        "removal of another place",
        _STORE_FILE,
        "encode_removed(target)) for sha256, target in targets]",
        "encode_removed(Place(target.pack, target.offset + 1))) for sha256, target in targets]",
        REMOVED,
    ),
    _of(
        "removals of a rewritten pack forgotten",
        _STORE_FILE,
        "            written_bytes = self._copy_removals(number)\n            unlink",
        "            written_bytes = 0\n            unlink",
        OUTLIVES,
    ),
    _of(
        "pack unlinked before its copies are synced",
        _STORE_FILE,
        """        with self._appending:
            writer, began, records = self._append([(found.sha256""",
        """        with self._appending:
            unlink(pack_name(contents[0][0].place.pack), parent=self._directory)
            self._disk.fsync(self._directory)
            writer, began, records = self._append([(found.sha256""",
        CUT_LEFT,
    ),
    _of(
        "unlinking of a pack not synced",
        _STORE_FILE,
        "            self._disk.fsync(self._directory)\n            self.index.drop(number)\n",
        "            self.index.drop(number)\n",
        COMES_BACK,
    ),
    _of(
        "pack dropped with what was not copied",
        _STORE_FILE,
        "self._is_appended_to(number) or self.index.in_pack(number, limit=1)",
        "self._is_appended_to(number)",
        f"{DAMAGED}[payload-True]",
    ),
    _of(
        "checksum of a payload not compared",
        _RECORD_FILE,
        "len(payload) == record.length and digest_of(payload) == record.digest",
        "len(payload) == record.length",
        f"{DAMAGED}[payload-False]",
    ),
    _of(
        "checksum of a head not compared",
        _RECORD_FILE,
        "without_crc(bytes(raw)) if len(raw) == HEAD_BYTES",
        "bytes(raw[:-CRC_BYTES]) if len(raw) == HEAD_BYTES",
        f"{DAMAGED}[name-False]",
    ),
    _of(
        "marker not random",
        _FILE,
        "secrets.token_bytes(MARKER_BYTES)",
        "bytes(MARKER_BYTES)",
        FORGED,
    ),
    _of(
        "marker at the end not compared",
        _RECORD_FILE,
        "not body.startswith(_END_MAGIC + marker)",
        "not body.startswith(_END_MAGIC)",
        FORGED,
    ),
    _of(
        "catch-up begins too late",
        _CATCHING_UP,
        "max(HEADER_BYTES, facts.indexed_bytes if facts else 0)",
        "max(HEADER_BYTES, facts.indexed_bytes + 1 if facts else 0)",
        BEHIND,
    ),
    _of(
        "blobs of a pack indexed without its removals",
        _CATCHING_UP,
        "stop=start, at_ns=at_ns)  # until",
        "stop=batch[-1].stop, at_ns=at_ns)  # until",
        UNREAD,
    ),
    _of(
        "what another process has left counted before it is synced",
        _CATCHING_UP,
        "            self._disk.fdatasync(descriptor)\n",
        "            pass\n",
        LEFT,
    ),
    _of(
        "blob that was removed back with the next reading of its pack",
        _INDEX_FILE,
        "    if db.execute(asked, (number, record.offset)).fetchone() is not None:\n        return\n",
        "",
        UNDONE,
    ),
    _of(
        "blob of a pack that cannot be opened given up",
        _STORE_FILE,
        "            raise OSError(errno.EIO, str(error)) from error\n",
        '            return b""\n',
        f"{_HEADERS}blob_of_a_pack_that_cannot_be_opened_is_kept_for_when_it_can",
    ),
    _of(
        "pack with a damaged header not rewritten",
        _STORE_FILE,
        "            self.without_header.add(number)\n",
        "",
        f"{_HEADERS}pack_with_a_damaged_header_is_read_by_the_index_and_rewritten[0]",
    ),
    _of(
        "pack sealed without its index",
        _FILE,
        "                encode_end(self.header.marker, self.records, self.durable_offset),\n",
        '                b"",\n',
        SEALED,
    ),
    _of(
        "pack that is appended to taken for one that was left",
        _FILE,
        "    except BlockingIOError:\n        return True\n",
        "    except BlockingIOError:\n        return False\n",
        IN_USE,
    ),
    _of(
        "index synced by nobody before it forgets its WAL",
        _INDEX_FILE,
        "PRAGMA synchronous = NORMAL",
        "PRAGMA synchronous = OFF",
        CUT_LEFT,
    ),
)
