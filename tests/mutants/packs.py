"""The deliberate bugs of the packs of a node: a power cut shows them, damage, or whoever opens them anew.

Of syncs that another one behind them makes up for there is none: nothing could tell that they are missing.
"""

from tests.mutants.mutant import Mutant

_PACKS = "tests/unit/node/packs"
_STORE = f"{_PACKS}/test_pack_store.py::test_"
CUT = f"{_PACKS}/test_pack_power_loss.py::test_what_was_stored_is_there"
COMES_BACK = f"{_PACKS}/test_pack_power_loss.py::test_pack_that_was_rewritten_does_not_come_back"
FORGETS_WAL = f"{_PACKS}/test_pack_power_loss.py::test_index_is_durable_before_its_wal_is_gone"
CUT_LEFT, CUT_LOST = f"{CUT}[1-index left]", f"{CUT}[1-index lost]"
DAMAGED = f"{_STORE}damage_costs_one_blob"
FORGED = f"{_STORE}content_that_ends_like_a_pack_hides_no_other"
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
        "what is found in a pack claimed by somebody",
        _INDEX_FILE,
        """                _insert(db, number, each, at_ns)
                self._note_arrival(db, each.sha256, at_ns)
            _count_indexed(db, number, stop)

    def affirm""",
        """                _insert(db, number, each, at_ns)
            _count_indexed(db, number, stop)

    def affirm""",
        f"{_STORE}what_is_back_without_the_index_is_claimed_by_nobody",
    ),
    _of(
        "record that was removed not known to count no more",
        _INDEX_FILE,
        "        _bury(db, each.sha256, *_place(each))\n",
        "",
        f"{_STORE}what_is_back_without_the_index_is_claimed_by_nobody",
    ),
    _of(
        "copy of a blob that was removed during a rewriting counts",
        _INDEX_FILE,
        "                    _bury(db, new.sha256, number, new.offset)\n",
        "                    _insert(db, number, new, 0)\n",
        f"{_WRONG}blob_that_is_removed_while_its_pack_is_rewritten_stays_removed",
    ),
    _of(
        "pack unlinked before its copies are synced",
        _STORE_FILE,
        """        with self._appending:
            writer, began, records = self._append([(found.sha256""",
        """        with self._appending:
            unlink(pack_name(payloads[0][0].place.pack), parent=self._directory)
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
        "self._is_appended_to(number) or self.index.list_pack(number, limit=1)",
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
        "what another process has left counted before it is synced",
        _CATCHING_UP,
        "            self._disk.fdatasync(reader.descriptor)\n",
        "            pass\n",
        LEFT,
    ),
    _of(
        "blob of a pack that cannot be opened given up",
        _STORE_FILE,
        "            raise OSError(errno.EIO, str(error)) from error\n",
        '            return b""\n',
        f"{_HEADERS}blob_of_a_pack_that_cannot_be_opened_is_kept_for_when_it_can",
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
        "hashlib.sha256(payload).digest() == found.sha256",
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
        FORGETS_WAL,
    ),
    Mutant(
        "record counts wherever its page lies",
        (
            (_RECORD_FILE, "sha256, record.digest), of=str(offset))", "sha256, record.digest))"),
            (_RECORD_FILE, "without_crc(bytes(raw), of=str(offset))", "without_crc(bytes(raw))"),
        ),
        (f"{_SECTORS}pages_in_each_others_place_cost_the_records_in_them_alone",),
    ),
    Mutant.of(
        "damaged record stays beside a sound one",
        "node/storage/packed_blobs",
        "            if others:\n",
        "            if False:\n",
        "tests/unit/node/storage/test_packed_damage.py::test_scrub_keeps_one_sound_record_of_a_blob",
    ),
)
