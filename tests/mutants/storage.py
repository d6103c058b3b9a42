"""The deliberate bugs of what a coordinator keeps on its disk: a power cut shows them, or damage does.

Of syncs that another one behind them makes up for there is none: nothing could tell that they are missing.
"""

from tests.mutants.mutant import Mutant

_POWER = "tests/unit/coordinator/storage/test_power_loss.py::test_"
APPLIED = f"{_POWER}state_is_that_of_the_last_checkpoint_or_a_later_one[sound-1]"
SUMMED = [
    f"{_POWER}state_is_that_of_the_last_checkpoint_or_a_later_one[sound-{seed}]" for seed in range(2, 7)
]
DEAF = f"{_POWER}state_is_that_of_the_last_checkpoint_or_a_later_one[deaf-1]"
COPIED = f"{_POWER}copy_that_is_said_to_be_made_is_whole[1]"
MADE = f"{_POWER}snapshot_that_is_handed_out_is_whole_and_none_goes_before_the_next_is_there[1]"
INSTALLED = f"{_POWER}member_that_installs_a_snapshot_has_the_old_state_or_the_new_one[1]"
DECIDED = f"{_POWER}decision_to_install_a_snapshot_is_durable[1]"
KILLED = (
    f"{_POWER}start_after_an_installation_that_was_killed_relies_on_nothing_that_is_not_durable"
    "[R /state.sqlite.install]"
)
REBUILT = f"{_POWER}state_that_was_found_wrong_is_never_gone_on_with[1]"
FORGETFUL = f"{_POWER}member_that_has_forgotten_a_vote_knows_that_it_has[1]"
APPENDED = f"{_POWER}log_on_a_disk_holds_what_it_acknowledged[1]"
PROMISED = f"{_POWER}torn_promise_leaves_the_one_before[1]"
SHAPED = f"{_POWER}file_has_the_size_and_the_bytes_that_were_synced[1]"
PLACED = f"{_POWER}small_file_is_the_old_one_or_the_new_one[1]"
COUNTED = f"{_POWER}start_of_a_directory_is_never_counted_twice[1]"

_ORIGIN_PLACED = """\
        with suppress(FileNotFoundError):  # here before a crash
            self._disk.replace(self._directory / f"{_name(meta)}.origin", self._origin_path)
            self._disk.sync(self._state_path.parent)
"""
_SECRET_FILES = "ca/secretfiles.py"

STATE = (
    Mutant.of(
        "state not synced",
        "coordinator/storage/database",
        "synchronous = NORMAL",
        "synchronous = OFF",
        APPLIED,
    ),
    Mutant.of(
        "name of the WAL not synced",
        "coordinator/storage/database",
        "        reserve_wal(writer, path)\n        sync_directory(path.parent)\n",
        "        reserve_wal(writer, path)\n",
        DEAF,
    ),
    Mutant.of(
        "WAL not synced before the log forgets",
        "coordinator/storage/state_file",
        "            os.fdatasync(wal)\n",
        "            pass\n",
        APPLIED,
    ),
    Mutant.of(
        "sums of pages not taken out before they are written",
        "coordinator/storage/page_sums",
        "                self._forget(pages)\n",
        "                pass\n",
        *SUMMED,
    ),
    Mutant.of(
        "sums of pages taken out without a sync",
        "coordinator/storage/stored_sums",
        "wal_salts=wal_salts))\n            os.fdatasync(self._file)\n",
        "wal_salts=wal_salts))\n",
        *SUMMED,
    ),
    Mutant.of(
        "sums kept of a database whose mark is not durable",
        "coordinator/storage/state_file",
        "            self.sync_wal()  # otherwise a power cut leaves sums of a file without a mark\n",
        "",
        APPLIED,
    ),
    Mutant.of(
        "copy not synced",
        "coordinator/storage/state_backup",
        "        yield descriptor\n        os.fsync(descriptor)\n",
        "        yield descriptor\n",
        COPIED,
    ),
    Mutant.of(
        "name of a copy not synced",
        "coordinator/storage/state_backup",
        "        os.close(descriptor)\n    sync_directory(target.parent)\n",
        "        os.close(descriptor)\n",
        COPIED,
    ),
    Mutant.of(
        "damaged pages not told at start",
        "coordinator/storage/state_file",
        """        if odd:
            return f"page {odd[0]} changed while no process ran"
""",
        "",
        "tests/unit/coordinator/storage/test_state_file.py"
        "::test_page_that_changed_while_nothing_ran_is_found",
    ),
    Mutant.of(
        "form of unknown pages not checked at start",
        "coordinator/storage/state_file",
        '        return "" if found == "ok" else str(found)\n',
        '        return ""\n',
        "tests/unit/coordinator/member/test_rebuilding.py"
        "::test_state_comes_from_another_coordinator_and_nothing_promised_is_forgotten[1]",
    ),
    Mutant.of(
        "page sums not compared",
        "coordinator/storage/page_sums",
        "                elif found != self._sums[first + page]:\n",
        "                elif False:\n",
        "tests/unit/coordinator/storage/test_page_sums.py"
        "::test_page_that_changes_by_itself_is_found_in_tables_and_indexes",
    ),
    Mutant.of(
        "frames of a WAL behind its last commit not read again",
        "coordinator/storage/wal_pages",
        "        del self._pages[self._committed :]\n",
        "",
        "tests/unit/coordinator/storage/test_wal_pages.py"
        "::test_every_page_that_a_checkpoint_writes_was_named_before",
    ),
    Mutant.of(
        "file copied of which a part is in the WAL",
        "coordinator/storage/state_store",
        "return None if self._file is None or self._held_back else self._file.pages",
        "return None if self._file is None else self._file.pages",
        "tests/unit/coordinator/storage/test_sound_snapshots.py"
        "::test_state_of_which_a_reader_holds_a_part_in_the_wal_is_not_settled",
    ),
)

SNAPSHOTS = (
    Mutant.of(
        "snapshot named before its note",
        "coordinator/storage/snapshot_store",
        """        write_durable(path.with_suffix(".json"), encode_sealed(note), mode=SECRET_MODE)
        making.replace(path)
""",
        """        making.replace(path)
        write_durable(path.with_suffix(".json"), encode_sealed(note), mode=SECRET_MODE)
""",
        MADE,
    ),
    Mutant.of(
        "snapshot before goes first",
        "coordinator/storage/snapshot_store",
        """        sync_directory(self._directory)
        self._outgoing = note
        self._remove_outgoing(but=_name(meta))
""",
        """        self._outgoing = note
        self._remove_outgoing(but=_name(meta))
        sync_directory(self._directory)
""",
        MADE,
    ),
    Mutant.of(
        "name of a snapshot not synced",
        "coordinator/storage/snapshot_store",
        "        making.replace(path)\n        sync_directory(self._directory)\n",
        "        making.replace(path)\n",
        MADE,
    ),
    Mutant.of(
        "fetched snapshot not synced",
        "coordinator/storage/snapshot_store",
        "            sync_file(self._path)\n",
        "            pass\n",
        INSTALLED,
    ),
    Mutant.of(
        "name of a verified snapshot not synced",
        "coordinator/storage/snapshot_store",
        "is verified again\n        sync_directory(self._path.parent)\n",
        "is verified again\n",
        INSTALLED,
    ),
    Mutant.of(
        "verified before it is synced",
        "coordinator/storage/snapshot_store",
        """        try:
            sync_file(self._path)
        except OSError:
            self.restart()  # the same bytes would seem to be durable at the next attempt
            raise
        write_origin(self._origin_path, self._note.origin)
        self._path.replace(self._verified_path)""",
        """        self._path.replace(self._verified_path)
        sync_file(self._verified_path)
        write_origin(self._origin_path, self._note.origin)
""",
        INSTALLED.replace("[1]", "[4]"),
    ),
    Mutant.of(
        "intent's name not synced",
        "coordinator/storage/snapshot_store",
        """self._intent_path)
        self._disk.sync(self._state_path.parent)
        self._disk.sync(self._directory)
""",
        """self._intent_path)
        self._disk.sync(self._directory)
""",
        DECIDED,
    ),
    Mutant(
        "origin of a state noted behind it",
        (
            ("coordinator/storage/snapshot_store.py", _ORIGIN_PLACED, ""),
            (
                "coordinator/storage/snapshot_store.py",
                "        self._disk.sync(self._directory)\n        note_path.unlink(missing_ok=True)\n",
                (
                    "        self._disk.sync(self._directory)\n"
                    f"        note_path.unlink(missing_ok=True)\n{_ORIGIN_PLACED}"
                ),
            ),
        ),
        (INSTALLED,),
    ),
    Mutant.of(
        "WAL of the state before outlives it",
        "coordinator/storage/snapshot_store",
        """        self._disk.sync(self._state_path.parent)
        self._disk.replace(self._intent_path, self._state_path)
""",
        "        self._disk.replace(self._intent_path, self._state_path)\n",
        INSTALLED,
    ),
    Mutant.of(
        "WAL of the state before not removed",
        "coordinator/storage/snapshot_store",
        '        self._disk.remove(self._sidecar("-wal"))\n',
        "",
        KILLED,
    ),
    Mutant.of(
        "sums of the state before not removed",
        "coordinator/storage/snapshot_store",
        "        self._disk.remove(self._sidecar(SUMS))\n",
        "",
        INSTALLED,
    ),
    Mutant.of(
        "log begun anew before the state is there",
        "coordinator/member/member",
        """            self._snapshots.install(ready.snapshot, self._store)
            self._log.reset(hard_state or self._log.hard_state, index, term)
""",
        """            self._log.reset(hard_state or self._log.hard_state, index, term)
            self._snapshots.install(ready.snapshot, self._store)
""",
        INSTALLED,
    ),
    Mutant.of(
        "installation not promised",
        "coordinator/member/member",
        "            self._log.promise(replace(self._log.promised, installing=(index, term)))\n",
        "",
        INSTALLED,
    ),
    Mutant.of(
        "digest of what is installed not verified",
        "coordinator/storage/snapshot_store",
        "                if matches_digest(self._intent_path):\n",
        "                if True:\n",
        "tests/unit/coordinator/storage/test_reopening.py"
        "::test_installation_of_other_rows_than_came_leaves_the_good_state",
    ),
    Mutant.of(
        "digest of what came not verified",
        "coordinator/storage/snapshot_store",
        "        if examined.sha256 != self._note.sha256:\n",
        "        if False:\n",
        "tests/unit/coordinator/storage/test_snapshot_store.py"
        "::test_other_rows_from_a_member_that_announces_no_rows_are_refused",
    ),
    Mutant.of(
        "rows that came not compared with those that were vouched for",
        "coordinator/storage/snapshot_store",
        '        if examined.flaw or self._note.content not in ("", examined.content):\n',
        "        if examined.flaw:\n",
        "tests/unit/coordinator/storage/test_sound_snapshots.py"
        "::test_rows_that_nobody_vouched_for_are_not_taken",
    ),
    Mutant.of(
        "checksum of a part not verified",
        "coordinator/storage/snapshot_store",
        "        and zlib.crc32(chunk.data) == chunk.crc\n",
        "",
        "tests/unit/coordinator/storage/test_snapshot_store.py::test_damaged_or_hostile_part_changes_nothing",
    ),
)

MARKS = (
    Mutant.of(
        "damage noted in passing",
        "coordinator/member/rebuilding",
        '        write_durable(files.state_damaged, damage.details.encode() + b"\\n")\n',
        '        files.state_damaged.write_bytes(damage.details.encode() + b"\\n")\n',
        REBUILT,
    ),
    Mutant.of(
        "note of damage removed before the state",
        "coordinator/member/rebuilding",
        "    await asyncio.to_thread(_move_aside, files)\n",
        "    files.state_damaged.unlink(missing_ok=True)\n    await asyncio.to_thread(_move_aside, files)\n",
        REBUILT,
    ),
    Mutant.of(
        "damaged state set aside without a sync",
        "coordinator/member/rebuilding",
        """            path.rename(files.data / f"{target}{ending}")
    sync_directory(files.data)
""",
        """            path.rename(files.data / f"{target}{ending}")
""",
        REBUILT,
    ),
    Mutant(
        "rebuilding noted at its end",
        (
            ("coordinator/member/rebuilding.py", "    await asyncio.to_thread(_begin_anew, files)\n", ""),
            (
                "coordinator/member/rebuilding.py",
                "    await asyncio.to_thread(sync_directory, files.data)\n",
                (
                    "    await asyncio.to_thread(sync_directory, files.data)\n"
                    "    await asyncio.to_thread(_begin_anew, files)\n"
                ),
            ),
        ),
        (REBUILT,),
    ),
    Mutant(
        "loss of votes noted after the log began anew",
        (
            (
                "coordinator/storage/reopening.py",
                (
                    "    log.promise(replace(promised, lost_term=lost_term, installing=(0, 0)))\n"
                    "    if log.promised.lost_term != lost_term:\n"
                ),
                "    if False:\n",
            ),
            (
                "coordinator/storage/reopening.py",
                '        log.append(HardState(lost_term + 1, "", known.commit), None, (), sync=True)\n',
                (
                    '        log.append(HardState(lost_term + 1, "", known.commit), None, (), sync=True)\n'
                    "    log.promise(replace(promised, lost_term=lost_term, installing=(0, 0)))\n"
                ),
            ),
        ),
        (FORGETFUL,),
    ),
    Mutant.of(
        "promises of a killed process not synced",
        "coordinator/storage/promises",
        "        self._file.sync()\n        self._directory.sync()\n        for slot",
        "        for slot",
        "tests/unit/coordinator/storage/test_reopening.py"
        "::test_promise_that_a_start_has_read_survives_a_power_cut",
    ),
    Mutant.of(
        "promises not synced",
        "coordinator/storage/promises",
        "_encode(self._number, promised))\n            self._file.sync()\n",
        "_encode(self._number, promised))\n",
        PROMISED,
    ),
    Mutant.of(
        "promises written over each other",
        "coordinator/storage/promises",
        "self._file.write(self._number % SLOTS * SLOT_BYTES,",
        "self._file.write(0,",
        PROMISED,
    ),
    Mutant.of(
        "start counted in passing",
        "metadata/rpc/instances",
        "            write_durable(each, encode_sealed(instance, of=own_id))\n",
        "            each.write_bytes(encode_sealed(instance, of=own_id))\n",
        COUNTED,
    ),
    Mutant.of(
        "seal of a small file not verified",
        "runtime/json_files",
        "    if found.crc32 != _checksum(bytes(found.content), found.of):\n",
        "    if False:\n",
        "tests/unit/runtime/test_json_files.py::test_flipped_bit_of_a_sealed_file_is_noticed",
    ),
    Mutant.of(
        "file of another member taken",
        "runtime/json_files",
        "    if found.of != of:\n",
        "    if False:\n",
        "tests/unit/runtime/test_json_files.py::test_file_of_another_member_is_damage",
    ),
)

FILES = (
    Mutant.of(
        "file that was reshaped not synced whole",
        "coordinator/storage/log_directory",
        "        if self._is_reshaped:  # fdatasync",
        "        if False:  # fdatasync",
        SHAPED,
    ),
    Mutant.of(
        "file that was cut not synced whole",
        "coordinator/storage/log_directory",
        "        os.ftruncate(self._descriptor, size_bytes)\n        self._is_reshaped = True\n",
        "        os.ftruncate(self._descriptor, size_bytes)\n",
        SHAPED,
    ),
    Mutant.of(
        "file that was allocated not synced whole",
        "coordinator/storage/log_directory",
        "        os.posix_fallocate(self._descriptor, 0, size_bytes)\n        self._is_reshaped = True\n",
        "        os.posix_fallocate(self._descriptor, 0, size_bytes)\n",
        SHAPED,
    ),
    Mutant.of(
        "name of the log not synced",
        "coordinator/storage/log_directory",
        "        sync_directory(path.parent)  # also an existing one",
        "        # also an existing one",
        APPENDED,
    ),
    Mutant(
        "small file not synced before it has its name",
        (
            (
                _SECRET_FILES,
                "            os.fchmod(descriptor, mode)\n            os.fsync(descriptor)\n",
                "            os.fchmod(descriptor, mode)\n",
            ),
        ),
        (PLACED,),
    ),
    Mutant(
        "name of a small file not synced",
        ((_SECRET_FILES, "        raise\n    sync_directory(path.parent)\n", "        raise\n"),),
        (PLACED,),
    ),
    Mutant(
        "name of a directory not synced",
        (
            (
                _SECRET_FILES,
                "            sync_directory(path.parent)\n    except OSError:\n",
                "            pass\n    except OSError:\n",
            ),
        ),
        (PLACED,),
    ),
)

STORAGE = STATE + SNAPSHOTS + MARKS + FILES
