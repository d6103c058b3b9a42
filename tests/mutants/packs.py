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
_WRONG = f"{_PACKS}/test_index_wrong.py::test_"
MISNAMED = "tests/unit/node/content/test_misnamed_files.py::test_"
LAST = (
    "tests/unit/node/storage/test_packed_damage.py"
    "::test_index_that_is_damaged_is_rebuilt_by_the_last_process_that_closes_it"
)
SEALED = f"{_STORE}pack_that_takes_no_more_carries_its_index"
FAILED = f"{_STORE}sync_that_fails_fails_all_of_its_blobs_and_no_other"

_FILE, _STORE_FILE = "node/packs/pack_file.py", "node/packs/store.py"
_CATCHING_UP = "node/packs/catching_up.py"
_SECTORS = "tests/unit/node/packs/test_bad_sectors.py::test_"
_RECORD_FILE, _INDEX_FILE = "node/packs/record.py", "node/packs/index.py"
_AGREEMENT, _ROWS = "node/packs/agreement.py", "node/packs/rows.py"
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
        "                self._append_removals(removed)\n",
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
        "without_crc(bytes(raw), of=str(offset)) if len(raw) == HEAD_BYTES",
        "bytes(raw[:-CRC_BYTES]) if len(raw) == HEAD_BYTES",
        f"{DAMAGED}[name-False]",
    ),
    _of(
        "marker known to clients",
        _RECORD_FILE,
        'hashlib.blake2b(number.to_bytes(8, "little"), digest_size=MARKER_BYTES).digest()',
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
        "pack that is begun at that moment taken for one that was left",
        _CATCHING_UP,
        "            return not is_in_use(reader)\n",
        "            return True\n",
        BEHIND,
    ),
    _of(
        "pack not begun while another looks at its lock",
        _FILE,
        "fcntl.LOCK_EX)  # others",
        "fcntl.LOCK_EX | fcntl.LOCK_NB)  # others",
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
        "content of a record not compared with its name",
        _STORE_FILE,
        "hashlib.sha256(content).digest() == found.sha256",
        "True",
        f"{_WRONG}row_of_another_blob_sends_no_byte_of_it",
    ),
    _of(
        "types of a row not compared",
        _ROWS,
        "    return type(value) is int and least <= value <= most\n",
        "    return True\n",
        f"{_WRONG}row_that_no_record_confirms_is_damage[True-length = 'much']",
    ),
    _of(
        "order of rows not compared",
        _ROWS,
        "all(map(operator.lt, keys, keys[1:]))",
        "True",
        f"{_WRONG}each_loop_over_rows_out_of_order_ends[list_all]",
    ),
    _of(
        "wrong place in the index taken for a rotten record",
        _AGREEMENT,
        "    if not is_right and any(",
        "    if False and any(",
        f"{_WRONG}row_that_no_record_confirms_is_damage[True-offset = offset + 1]",
    ),
    _of(
        "rotten record taken for a wrong place in the index",
        _AGREEMENT,
        "        return wanted in records\n",
        "        return False\n",
        f"{_WRONG}record_that_is_rotten_is_no_damage_of_the_index",
    ),
    _of(
        "pack removed though the index lacks its records",
        _AGREEMENT,
        "    check_pack(index, opened, pack)\n    return True\n",
        "    return True\n",
        f"{_WRONG}pack_with_a_record_that_the_index_lacks_is_not_removed",
    ),
    _of(
        "pack removed though the index lacks its removals",
        _AGREEMENT,
        "    return target is not None and target.pack in numbers\n",
        "    return False\n",
        f"{_WRONG}pack_with_a_removal_that_the_index_lacks_is_not_removed",
    ),
    _of(
        "pack removed that lies under the name of another",
        _AGREEMENT,
        "        if opened(pack.number).is_another():\n            return False\n",
        "        pass\n",
        f"{_WRONG}pack_that_lies_under_the_name_of_another_is_no_damage_of_the_index",
    ),
    _of(
        "row without a record not found",
        _AGREEMENT,
        "is_whole or _is_within(row.place.offset, records) for row",
        "False for row",
        f"{_WRONG}record_that_the_index_has_and_a_pack_does_not_is_found",
    ),
    _of(
        "removal of one record of several",
        _INDEX_FILE,
        "FROM dead WHERE sha256 = ? ORDER BY pack, offset",
        "FROM dead WHERE sha256 = ? ORDER BY pack, offset LIMIT 1",
        f"{_WRONG}older_record_of_a_removed_blob_is_not_back_without_the_index",
    ),
    _of(
        "removal during a rewriting not recorded",
        _STORE_FILE,
        """            return written_bytes + self._append_removals(
                [(each.sha256, Place(writer.number, each.offset)) for each in left]
            )
""",
        "            return written_bytes\n",
        f"{_WRONG}blob_that_is_removed_while_its_pack_is_rewritten_is_not_back_without_the_index",
    ),
    _of(
        "blob that was rewritten while it is read not looked up again",
        _STORE_FILE,
        "            if _places(before) == _places(copies):",
        "            if True:",
        f"{_WRONG}blob_that_is_rewritten_while_it_is_read_is_looked_up_again[False]",
    ),
    _of(
        "what was written in vain kept",
        _FILE,
        "            os.ftruncate(self._descriptor, self.durable_offset)\n",
        "            pass\n",
        f"{_STORE}what_a_disk_has_not_taken_leaves_no_packs",
    ),
    _of(
        "damage that another process has found not heeded",
        _INDEX_FILE,
        "self._is_usable and not os.path.exists(self._mark)",
        "self._is_usable",
        LAST,
    ),
    _of(
        "index rebuilt while another process uses it",
        _STORE_FILE,
        "            if not is_alone:\n",
        "            if False:\n",
        LAST,
    ),
    _of(
        "scrub asks no pack what the index lacks",
        "node/custody/scrub.py",
        "                await context.budget.take(await context.disk.run(store.check_pack, pack))\n",
        "                pass\n",
        "tests/unit/node/storage/test_packed_damage.py"
        "::test_scrub_finds_what_the_index_of_the_packs_lacks[packs]",
    ),
    _of(
        "content of one segment not compared with its name",
        "node/storage/segments.py",
        "whole = self.begin() if self.size_bytes <= SEGMENT_BYTES else None",
        "whole = None",
        f"{MISNAMED}content_of_one_segment_is_compared_with_its_name_before_it_is_sent[whole-1000]",
    ),
    _of(
        "size of a file not compared with the log",
        "node/content/delivery.py",
        "            blob.require_size(content.file.size_bytes)\n",
        "",
        f"{MISNAMED}file_of_another_size_than_the_log_names_is_not_sent",
    ),
    _of(
        "salvaged content not compared with its name",
        "node/peer/salvage.py",
        "        if self._blob.size_bytes <= SEGMENT_BYTES:\n",
        "        if False:\n",
        f"{MISNAMED}damaged_copy_that_is_other_content_is_no_source",
    ),
    _of(
        "index synced by nobody before it forgets its WAL",
        _INDEX_FILE,
        "PRAGMA synchronous = NORMAL",
        "PRAGMA synchronous = OFF",
        CUT_LEFT,
    ),
    Mutant(
        "record counts wherever its page lies",
        (
            (_RECORD_FILE, "sha256, record.digest), of=str(offset))", "sha256, record.digest))"),
            (_RECORD_FILE, "without_crc(bytes(raw), of=str(offset))", "without_crc(bytes(raw))"),
        ),
        (f"{_SECTORS}pages_in_each_others_place_cost_the_records_in_them_alone",),
    ),
)
