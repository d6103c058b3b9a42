"""The deliberate bugs of cold replicas: a chunk or a form goes too early, or wrong bytes are served."""

from tests.mutants.mutant import Mutant

_COLD = "tests/unit/node/cold"
_STORE = f"{_COLD}/test_cold_store.py::test_"
STORM = f"{_COLD}/test_cold_storm.py::test_what_is_named_stays_and_nothing_else[1]"
CUT_LEFT = f"{_COLD}/test_cold_power_loss.py::test_replica_is_there_hot_or_cold[1-index left]"
_PASSES = "tests/unit/node/custody/test_cold_storage.py::test_"
_REPAIR = "tests/unit/node/custody/test_chunk_repair.py::test_"
_DOWNLOADS = "tests/unit/node/content/test_cold_downloads.py::test_"
DELETED = f"{_STORE}blob_that_is_deleted_while_it_turns_cold_does_not_come_back"
DRAFT = f"{_STORE}draft_keeps_its_chunks_and_one_of_a_dead_process_does_not"
ROTTEN = f"{_STORE}rotten_chunk_is_stored_again_by_the_next_replica_that_has_it"
OTHER = f"{_STORE}chunk_of_another_name_is_not_taken_for_it"
KINDS = f"{_PASSES}kinds_turn_cold_after_their_time"

_CHUNKS, _MANIFEST, _FILES = "node/cold/chunks", "node/cold/manifest", "node/cold/manifests"
_COLLECTION, _BLOBS, _OPEN = "node/cold/collection", "node/storage/blobs", "node/storage/cold_blobs"
_FREEZING, _PASS = "node/custody/freezing", "node/custody/cold_storage"

COLD = (
    Mutant.of(
        "file removed that arrived again while it was frozen",
        _BLOBS,
        "            if identity != manifest or super().identity(sha256)[0] != file:\n",
        "            if identity != manifest:\n",
        f"{_STORE}file_stays_if_it_or_its_manifest_was_replaced",
    ),
    Mutant.of(
        "manifest of a deleted blob put into place",
        _FREEZING,
        "        manifest = await disk.run(writer.place, unless=is_another)\n",
        "        manifest = await disk.run(writer.place)\n",
        DELETED,
    ),
    Mutant.of(
        "file removed without its manifest in place",
        _BLOBS,
        "            if identity != manifest or super().identity(sha256)[0] != file:\n",
        "            if super().identity(sha256)[0] != file:\n",
        f"{_STORE}file_stays_if_it_or_its_manifest_was_replaced",
    ),
    Mutant.of(
        "whole content not compared with its name",
        _OPEN,
        "        if FinishedBlob(hasher.sha256(), hasher.size_bytes) != self._blob:\n",
        "        if hasher.size_bytes != self._blob.size_bytes:\n",
        f"{_STORE}file_with_other_content_than_its_name_does_not_turn_cold",
    ),
    Mutant.of(
        "rotten chunk taken for one that is here",
        _OPEN,
        "        except ChunkMissing:\n            if again is None:\n                raise\n",
        "        except ChunkMissing:\n            if again is not None:\n"
        "                return again(chunk)\n            raise\n",
        ROTTEN,
    ),
    Mutant.of(
        "drafts not read by a collection",
        _COLLECTION,
        "    for raw in _drafts(files):\n",
        "    for raw in ():\n",
        DRAFT,
    ),
    Mutant.of(
        "drafts of dead processes kept",
        _FILES,
        "            unlink(name, parent=self.drafts)\n            return False\n",
        "            return True\n",
        DRAFT,
    ),
    Mutant.of(
        "chunk counted on before a draft names it",
        _FILES,
        "        write_all(self._disk, self._descriptor, encoded, HEADER_BYTES + len(self._entries))\n",
        "",
        DRAFT,
    ),
    Mutant.of(
        "affirmation of a chunk not recorded",
        "node/packs/index",
        'asked = "UPDATE blobs SET affirmed_at_ns = ?1 + (affirmed_at_ns = ?1) WHERE sha256 = ?2"',
        'asked = "UPDATE blobs SET affirmed_at_ns = affirmed_at_ns + 0 * ?1 WHERE sha256 = ?2"',
        f"{_STORE}chunk_that_was_affirmed_since_it_was_listed_stays",
    ),
    Mutant(
        "manifests listed before drafts and chunks",
        (
            (
                f"{_COLLECTION}.py",
                "    rows = list(chunks.rows(first, stop))\n",
                "    manifests = list(_manifests(files))\n    rows = list(chunks.rows(first, stop))\n",
            ),
            (f"{_COLLECTION}.py", "in _manifests(files):\n", "in manifests:\n"),
        ),
        (f"{_STORE}blob_that_is_placed_while_chunks_are_listed_keeps_them",),
    ),
    Mutant.of(
        "chunk not compared with its name",
        _CHUNKS,
        "            if hashlib.sha256(content).digest() != found.sha256:\n                return None\n",
        "",
        OTHER,
    ),
    Mutant.of(
        "chunk trusted whatever its record",
        _CHUNKS,
        "        return found == digest and self._clock() - at_s < TRUSTED_S\n",
        "        return bool(found) and self._clock() - at_s < TRUSTED_S\n",
        f"{OTHER}[trusted]",
    ),
    Mutant.of(
        "manifest not compared with its checksum",
        _MANIFEST,
        "    body = without_crc(raw, of=sha256)\n",
        "    body = raw[:-4]\n",
        f"{_STORE}manifest_with_another_bit_is_damage",
    ),
    Mutant.of(
        "manifest not synced",
        _FILES,
        "        os.fchmod(self._descriptor, 0o400)\n        self._disk.fsync(self._descriptor)\n",
        "        os.fchmod(self._descriptor, 0o400)\n",
        CUT_LEFT,
    ),
    Mutant.of(
        "directory of a manifest not synced",
        _FILES,
        "            os.rename(draft, sha256, src_dir_fd=self.drafts, dst_dir_fd=upper)\n"
        "            self.syncs.sync(self._disk, upper, sha256[:2])\n",
        "            os.rename(draft, sha256, src_dir_fd=self.drafts, dst_dir_fd=upper)\n",
        CUT_LEFT,
    ),
    Mutant.of(
        "removal of a manifest not synced",
        _FILES,
        "                remove_tree(sha256, parent=upper)\n"
        "                self.syncs.sync(self._disk, upper, sha256[:2])\n",
        "                remove_tree(sha256, parent=upper)\n",
        CUT_LEFT,
    ),
    Mutant.of(
        "cold form kept when the content arrives again",
        _BLOBS,
        "            self.cold.remove(blob.sha256, unless=lambda: not self.has_file(blob.sha256))\n",
        "",
        f"{_STORE}content_that_arrives_again_takes_the_place_of_the_cold_form",
    ),
    Mutant.of(
        "cold form kept when the blob is deleted",
        _BLOBS,
        "            removed |= self.cold.remove(sha256, unless=lambda: not was_removed and unless())\n",
        "            removed |= bool(was_removed)\n",
        f"{_STORE}deletion_removes_both_forms",
    ),
    Mutant.of(
        "affirmation lost when a replica turns cold",
        _BLOBS,
        "            self.cold.manifests.touch(sha256, affirmed_at_ns)\n",
        "            del affirmed_at_ns\n",
        f"{_STORE}affirmation_survives_freezing_and_marks_a_cold_blob",
    ),
    Mutant.of(
        "all decoded chunks kept",
        _OPEN,
        "if before < at + len(content)}",
        "if before is not None or at + len(content)}",
        f"{_STORE}what_is_decoded_ahead_is_bounded",
    ),
    Mutant.of(
        "chunk of a peer not compared with its name",
        "node/custody/chunk_repair",
        "                if content is None or hashlib.sha256(content).digest() != chunk.id:\n",
        "                if content is None:\n",
        f"{_REPAIR}bytes_that_are_not_the_chunk_are_not_stored",
    ),
    Mutant.of(
        "missing chunks not noted by a collection",
        _PASS,
        "            await context.disk.run(context.blobs.cold.note_damaged, chunk_id)\n",
        "            del chunk_id\n",
        f"{_REPAIR}chunks_that_the_index_lacks_are_noted_and_repaired",
    ),
    Mutant.of(
        "damaged chunk not noted by a reader",
        "node/storage/damage",
        "        blobs.cold.note_damaged(damage.chunk)\n",
        "",
        f"{_DOWNLOADS}damaged_chunk_is_never_sent_and_another_replica_continues",
    ),
    Mutant.of(
        "images that are read turn cold",
        _PASS,
        "        is_idle = not replica.idle_ms or at_ms - read_at_ms >= replica.idle_ms\n",
        "        is_idle = at_ms >= read_at_ms\n",
        KINDS,
    ),
    Mutant.of(
        "content of a hot bucket turns cold",
        _PASS,
        "        if not replica.hot and not is_often_read",
        "        if not is_often_read",
        f"{_PASSES}content_of_several_files_is_hot_if_one_wants_that",
    ),
    Mutant.of(
        "file of an upload turns cold",
        _PASS,
        "                if replica.sha256 not in finished:\n",
        "                if replica.sha256:\n",
        f"{_PASSES}uploads_that_became_the_blob_keep_its_file",
    ),
    Mutant.of(
        "an older release may start with cold replicas",
        _PASS,
        "            await context.disk.run(self._marks, True)\n",
        "            pass\n",
        f"{_PASSES}thaw_makes_all_hot_and_says_that_an_older_release_may_start",
    ),
    Mutant.of(
        "an older release may start though a replica stayed cold",
        _PASS,
        'if not run.counts["failed"] and not await context.disk.run(self._cold_names):',
        "if run.counts:",
        f"{_PASSES}older_release_may_not_start_while_a_replica_stays_cold",
    ),
)
