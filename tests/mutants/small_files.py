"""Deliberate bugs in reading what lies on a disk: damage, or another's file, is taken for what it is not."""

from tests.mutants.mutant import Mutant

_UPLOADS = "tests/unit/node/staging/test_upload_store.py::test_"
_EXCHANGED = "tests/unit/node/staging/test_exchanged_files.py::test_"
_SCRUB = "tests/unit/node/custody/test_scrub.py::test_"
_SCHEMA = "tests/unit/coordinator/storage/test_damaged_schema.py::test_"
PROGRESS = f"{_SCRUB}progress_that_a_disk_changed_or_another_node_made_is_unknown[files]"
SCHEMA = f"{_SCHEMA}damaged_schema_is_found_at_start_and_told"


def _of(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, ((file, old, new),), tests)


SMALL_FILES = (
    _of(
        "upload finished by the record of another one",
        "node/diskio/durable.py",
        "zlib.crc32(body, zlib.crc32(of.encode()))",
        "zlib.crc32(body)",
        f"{_UPLOADS}upload_is_not_finished_by_the_record_of_another_one",
    ),
    _of(
        "upload that an older release finished begins anew",
        "node/storage/pins.py",
        "(without_crc(raw, of=file_uuid) or without_crc(raw))",
        "without_crc(raw, of=file_uuid)",
        f"{_UPLOADS}upload_that_an_older_release_finished_is_finished",
    ),
    _of(
        "durable offset of another upload believed",
        "node/diskio/durable.py",
        "if is_named and named != self._owner:",
        "if False:",
        f"{_EXCHANGED}files_that_were_exchanged_with_those_of_another_upload_are_not_trusted",
    ),
    _of(
        "progress of scrubbing of another node believed",
        "node/custody/scrub.py",
        "decode_sealed(raw, Cycle, of=self._context.node_id)",
        "msgspec.json.decode(bytes(msgspec.json.decode(self._state.read_bytes(),"
        " type=dict[str, msgspec.Raw])['content']), type=Cycle)",
        PROGRESS,
    ),
    _of(
        "note of a lock that is no text ends the node",
        "node/base/instance.py",
        "decode_foreign(os.pread(lock, NOTE_BYTES_MAX, 0), _Note)",
        "msgspec.json.decode(os.pread(lock, NOTE_BYTES_MAX, 0), type=_Note)",
        "tests/unit/node/base/test_instance.py::test_note_that_is_no_text_tells_nothing",
    ),
    Mutant.of(
        "schema that is no text is no damage",
        "coordinator/storage/state_damage",
        "is_damage = isinstance(error, UnicodeDecodeError) or ",
        "is_damage = ",
        SCHEMA,
    ),
    Mutant.of(
        "entry of a file with a damaged schema looked for",
        "coordinator/storage/database",
        "    except DATABASE_ERRORS:\n        return 0, 0, 0\n",
        "    except sqlite3.Error:\n        return 0, 0, 0\n",
        SCHEMA,
    ),
    Mutant.of(
        "doctor ends on a damaged schema",
        "coordinator/admin/doctor",
        "    except (*DATABASE_ERRORS, TypeError) as error:",
        "    except (sqlite3.Error, TypeError) as error:",
        SCHEMA,
    ),
    Mutant.of(
        "check of a database ends on a damaged schema",
        "coordinator/storage/state_damage",
        "    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:",
        "    except sqlite3.DatabaseError as error:",
        SCHEMA,
    ),
    Mutant.of(
        "earlier file under a newer WAL believed",
        "coordinator/storage/state_file",
        "        if 0 < found < noted:",
        "        if noted < 0:",
        "tests/unit/coordinator/storage/test_state_file.py"
        "::test_file_of_an_earlier_state_under_a_newer_wal_is_found[False]",
    ),
)
