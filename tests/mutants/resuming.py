"""Deliberate bugs of uploads that are resumed: what was sent is not compared, or with something else.

Each names the quick test that has to catch it.
"""

from tests.mutants.mutant import Mutant

_HEAD = "tests/unit/node/content/test_tus.py::test_head_tells_"
_SOURCES = "tests/unit/filestore_client/test_sources.py::test_content_that_"
_OTHER = f"{_SOURCES}differs_in_one_byte_before_the_offset_is_another"
_READ_ON = f"{_SOURCES}begins_as_the_upload_is_read_on"
_PROGRESS = "tests/unit/coordinator/machine/test_uploads.py::test_progress_"
_NEVER_BACK = f"{_PROGRESS}never_goes_back_nor_changes_what_was_recorded"

_TUS = "node/content/tus.py"
_UPLOADING = "client/filestore_client/transfer/uploading.py"
_SOURCES_FILE = "client/filestore_client/transfer/sources.py"
_RECEIVING = "node/content/receiving.py"
_INCOMING = "node/content/incoming.py"
_CONTENT_TESTS = "tests/unit/node/content"
_INCOMING_TESTS = f"{_CONTENT_TESTS}/test_incoming.py::test_"
_BROKEN_OFF = (
    f"{_CONTENT_TESTS}/test_short_put.py"
    "::test_first_bytes_of_a_body_that_breaks_off_are_kept_unless_it_has_a_checksum"
)
_CHANGES = f"{_CONTENT_TESTS}/test_holder_changes.py::test_"
_COMPLETION = "node/uploads/completion.py"
_DECLARED = "(sha256, holder.record.expected_sha256, found="
_COMPARED = "return state.prefix_digest == repr_digest(await source.prefix_sha256(state.offset))"
_OF_SENT = "            self._hash_of_sent = self._hash.copy()\n"

RESUMING = (
    Mutant(
        "digest told of an upload whose offset is not",
        ((_TUS, "            headers.pop(PREFIX_DIGEST, None)\n", ""),),
        (f"{_HEAD}no_digest_without_an_offset",),
    ),
    Mutant(
        "digest of content that is stored is not told",
        ((_TUS, "record.blob_sha256 or record.prefix_sha256", "record.prefix_sha256"),),
        (f"{_HEAD}the_digest_of_the_bytes_before_the_offset",),
    ),
    Mutant(
        "content is not compared with what was sent",
        ((_UPLOADING, _COMPARED, "return True"),),
        (f"{_OTHER}[path-1]", f"{_OTHER}[stream-1]"),
    ),
    Mutant(
        "content is compared as it is behind the offset",
        ((_SOURCES_FILE, "memoryview(self._piece)[: offset - self._start]", "memoryview(self._piece)"),),
        (_READ_ON,),
    ),
    Mutant(
        "only the held piece of a stream is compared",
        ((_SOURCES_FILE, _OF_SENT, ""),),
        (_READ_ON,),
    ),
    Mutant.of(
        "recorded offset goes back",
        "coordinator/machine/uploads",
        "    if command.offset_bytes < earlier.offset_bytes:",
        "    if command.offset_bytes < 0:",
        _NEVER_BACK,
    ),
    Mutant.of(
        "other bytes are recorded at the same offset",
        "coordinator/machine/uploads",
        "is_same = command.prefix_sha256 == earlier.prefix_sha256 or not earlier.prefix_sha256",
        "is_same = True",
        _NEVER_BACK,
    ),
    Mutant(
        "digest of the creation is not compared with pieces",
        (
            (
                _COMPLETION,
                _DECLARED,
                "(sha256, found=",
            ),
        ),
        ("tests/cluster/test_uploads.py::test_content_that_is_not_what_its_creator_declared_is_refused",),
    ),
    Mutant(
        "digest that came with the last bytes is not compared",
        (
            (
                _RECEIVING,
                "if declared_sha256 and is_all",
                "if False",
            ),
            (
                _COMPLETION,
                _DECLARED,
                "(holder.record.expected_sha256, found=",
            ),
        ),
        ("tests/api/test_uploads.py::test_digest_of_the_whole_is_checked_when_the_last_piece_came",),
    ),
    Mutant(
        "first bytes of short content that breaks off are dropped",
        ((_RECEIVING, "if received and not incoming.checksums:", "if False:"),),
        (f"{_BROKEN_OFF}[headers0-2500]",),
    ),
    Mutant(
        "bytes of short content are kept whose checksum was not compared",
        ((_RECEIVING, "if received and not incoming.checksums:", "if received:"),),
        (f"{_BROKEN_OFF}[headers1-0]",),
    ),
    Mutant(
        "partial upload takes the short way, and becomes a file",
        ((_INCOMING, " or record.kind == PARTIAL:", ":"),),
        (f"{_INCOMING_TESTS}bytes_are_all_of_the_content",),
    ),
    Mutant(
        "bytes beyond the declared size are taken",
        ((_INCOMING, "if self.stop > limit_bytes", "if (self.start or 0) > limit_bytes"),),
        (f"{_INCOMING_TESTS}bytes_beyond_the_size_are_rejected",),
    ),
    Mutant(
        "another PATCH than the one that completed the upload is answered as that",
        (("node/content/replay.py", "completed_from not in (UNSET, start)", "False"),),
        ("tests/api/test_uploads.py::test_last_step_may_be_repeated_and_answers_the_same",),
    ),
    Mutant.of(
        "request whose body has begun is passed on",
        "node/content/upload_session",
        "                if not change.is_untouched:\n                    raise\n",
        "",
        f"{_CHANGES}request_whose_body_has_begun_is_not_passed_on",
    ),
    Mutant.of(
        "record of before is answered by once another node holds the upload",
        "node/content/handlers",
        "        async with upload_session(asked) as session:\n            if not session.has_ended:",
        "        async with upload_session(asked) as session:\n            if False:",
        f"{_CHANGES}offset_is_told_by_the_node_that_has_what_the_holder_has_lost",
    ),
    Mutant.of(
        "holder does not learn that the client of what was passed on is gone",
        "node/uploads/forwarding",
        "            connection.when_lost.add(look)\n",
        "",
        "tests/unit/node/uploads/test_forwarding.py"
        "::test_holder_learns_that_the_client_went_away_behind_its_body",
    ),
)
