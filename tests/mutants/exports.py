"""Deliberate bugs in backups of GNS3 labs.

Each names the quick test that has to catch it.
"""

from tests.mutants.mutant import Mutant

_ARCHIVE = "tests/unit/deploy/gns3/test_archive.py::test_"
_LIVENESS = "tests/unit/deploy/gns3/test_liveness.py::test_"
_LOSSES = "tests/unit/deploy/gns3/test_losses.py::test_"

EXPORTS = (
    Mutant(
        "import unpacks its topology first",
        (
            (
                "deploy/gns3/archive.py",
                """        made.filelist.extend(others)
        made.writestr(zipfile.ZipInfo(TOPOLOGY, (1980, 1, 1, 0, 0, 0)), topology)
""",
                """        made.writestr(zipfile.ZipInfo(TOPOLOGY, (1980, 1, 1, 0, 0, 0)), topology)
        made.filelist.extend(others)
""",
            ),
        ),
        (f"{_ARCHIVE}import_gets_another_topology_and_unpacks_it_last",),
    ),
    Mutant(
        "import keeps a topology with the original id",
        (
            (
                "deploy/gns3/archive.py",
                "[entry for entry in archive.entries if entry.filename != TOPOLOGY]",
                "[entry for entry in archive.entries if entry is not archive.topologies[0]]",
            ),
        ),
        (f"{_ARCHIVE}all_topologies_of_an_archive_are_replaced",),
    ),
    Mutant(
        "project in the folder of another is backed up",
        (("deploy/gns3/losses.py", "if is_uuid(folder) and folder", "if not folder and folder"),),
        (f"{_LOSSES}project_in_the_folder_of_another_is_refused",),
    ),
    Mutant(
        "export that shrank by half is backed up",
        (("deploy/gns3/losses.py", "before_bytes * SHRUNK_TO", "before_bytes * 0"),),
        (f"{_LOSSES}export_that_is_a_loss_is_refused",),
    ),
    Mutant.of(
        "archives of different compressions are compared by their sizes",
        "deploy/gns3/losses",
        "    if newest.file.compression != end.compression:\n",
        "    if not newest.file.compression:\n",
        f"{_LOSSES}sizes_of_other_compressions_are_those_of_the_files",
    ),
    Mutant.of(
        "project that GNS3 exports no file of is backed up",
        "deploy/gns3/losses",
        'search(f"{project.path}/")',
        'search("")',
        f"{_LOSSES}project_that_gns3_exports_no_file_of_is_refused",
    ),
    Mutant.of(
        "what GNS3 2.2 takes for a snapshot is forgotten",
        "deploy/gns3/export",
        "|.*snapshots(/[^/]*)?",
        "|.*snapshots",
        f"{_LOSSES}what_the_server_does_not_tell_stays_recorded",
    ),
    Mutant(
        "export of another project is backed up",
        (("deploy/gns3/losses.py", "each.lower() != project.project_id.lower()", "not each"),),
        (f"{_LOSSES}export_that_is_a_loss_is_refused",),
    ),
    Mutant(
        "missing files are not recorded",
        (("deploy/gns3/archive.py", "if not missing.count or", "if missing.count or"),),
        (f"{_ARCHIVE}missing_files_are_recorded_in_the_comment_and_change_nothing_else",),
    ),
    Mutant(
        "what a closed project is known to lack is forgotten",
        (
            (
                "deploy/gns3/export.py",
                "unknown = set[str]() if end.is_listed else silent",
                "unknown = set[str]()",
            ),
        ),
        (f"{_LOSSES}what_the_server_does_not_tell_stays_recorded",),
    ),
    Mutant(
        "file that can be read again stays missing",
        (("deploy/gns3/export.py", "if not end.is_heard:", "if True:"),),
        (f"{_LOSSES}what_the_server_does_not_tell_stays_recorded",),
    ),
    Mutant(
        "server that hangs is waited for",
        (("deploy/gns3/liveness.py", "            await ask()\n", "            pass\n"),),
        (f"{_LIVENESS}long_request_ends_with_the_question_that_is_not_answered",),
    ),
    Mutant(
        "server that hangs is told by a group of errors",
        (("deploy/gns3/liveness.py", "raise failures.exceptions[0] from None", "raise"),),
        (f"{_LIVENESS}error_within_comes_as_it_is",),
    ),
)
