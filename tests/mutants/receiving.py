"""Deliberate bugs in how content comes to a disk: what is promised of it is not true, or not durable."""

from typing import Final

from tests.mutants.mutant import Mutant

_FILE: Final = "node/storage/content_file"
_BLOBS: Final = "node/storage/blob_files"
_STORAGE: Final = "tests/unit/node/storage/test_"
_STAGING: Final = "tests/unit/node/staging/test_upload_"
SYNCS: Final = f"{_STORAGE}directory_syncs.py::test_files_of_a_partial_that_were_not_durable"
NAMES: Final = f"{_STAGING}syncing.py::test_names_of_a_new_upload_are_durable_before_its_first_offset"
POWER: Final = f"{_STORAGE}content_power_loss.py::test_what_was_promised_of_content_on_its_way_is_true"

RECEIVING = (
    Mutant.of(
        "bytes recorded before their file has a durable name",
        _FILE,
        "            self.sync_names()\n            record()",
        "            record()",
        f"{NAMES}_and_synced_once",
    ),
    Mutant.of(
        "bytes recorded before they are synced",
        _FILE,
        "            self._disk.fdatasync(self._data)\n",
        "            pass\n",
        POWER,
    ),
    Mutant.of(
        "sync that failed tried again",
        _FILE,
        "            self.broken = True\n",
        "            pass\n",
        f"{_STORAGE}partial_store.py::test_failed_sync_is_never_followed_by_a_success",
        f"{_STAGING}store.py::test_failed_sync_is_never_believed_when_tried_again",
    ),
    Mutant.of(
        "replica not compared with its name",
        _FILE,
        "        if found != expected:\n",
        "        if False:\n",
        f"{_STORAGE}blobs.py::test_wrong_content_is_not_kept",
        f"{_STORAGE}partial_store.py::test_content_that_is_not_the_blob_is_not_installed",
    ),
    Mutant.of(
        "sealed file of a crash stays read-only",
        _FILE,
        "            os.fchmod(found, 0o600)\n",
        "            pass\n",
        f"{_STORAGE}partial_store.py::test_partial_that_was_sealed_before_a_crash_can_be_gone_on_with",
    ),
    Mutant.of(
        "content moved into a directory whose name is not durable",
        _BLOBS,
        "            self._sync_levels(blob.sha256, upper)\n            with self.placing:\n",
        "            with self.placing:\n",
        POWER,
    ),
    Mutant.of(
        "files of a partial replica relied on before their names are durable",
        "node/storage/partial_store",
        "            partial.sync_names()\n",
        "",
        f"{SYNCS}_are_when_it_is_opened_again",
    ),
    Mutant.of(
        "room promised to one replica promised to another",
        "node/storage/partial_store",
        "sum(each.lacking_bytes for each in self._held)",
        "partial.lacking_bytes",
        f"{_STORAGE}partial_store.py::test_reserve_is_kept_before_and_while_a_replica_comes",
    ),
)
