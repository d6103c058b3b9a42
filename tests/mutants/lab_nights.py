"""Deliberate bugs of backups of labs night after night: what is gone is not missed, and who ends is not seen.

Each names the quick test that has to catch it.
"""

from tests.mutants.mutant import Mutant

_STATE = "tests/unit/deploy/gns3/test_state.py::test_"
_WATCH = "tests/unit/deploy/gns3/test_watch.py::test_"
_JOURNAL_FILE = "deploy/gns3/journal.py"
_WATCH_FILE = "deploy/gns3/watch.py"

LAB_NIGHTS = (
    Mutant(
        "lab that is gone is forgotten by itself",
        (
            (
                _JOURNAL_FILE,
                "known[project_id].gone_at = known[project_id].gone_at or at",
                "del known[project_id]",
            ),
        ),
        (f"{_STATE}project_that_is_gone_counts_until_it_is_forgotten",),
    ),
    Mutant(
        "lab that came back stays missed",
        ((_JOURNAL_FILE, "memory.name, memory.gone_at = project.name, 0.0", "memory.name = project.name"),),
        (f"{_STATE}project_that_is_gone_counts_until_it_is_forgotten",),
    ),
    Mutant(
        "server without labs is as good as new each night",
        ((_JOURNAL_FILE, "if projects or not self._content.shown_at:", "if True:"),),
        (f"{_STATE}server_without_projects_counts_from_when_it_last_showed_one",),
    ),
    Mutant(
        "watch goes on without a password that is taken",
        ((_WATCH_FILE, "            except LASTING:\n                raise\n", ""),),
        (f"{_WATCH}server_that_takes_no_password_ends_the_watch",),
    ),
    Mutant(
        "watch ends when the server is away",
        ((_WATCH_FILE, "            except LASTING:\n", "            except FilestoreError:\n"),),
        (f"{_WATCH}server_that_is_away_is_told_and_waited_for",),
    ),
    Mutant(
        "watch ends with a group of errors, which has no exit code",
        ((_WATCH_FILE, "raise failures.exceptions[0] from None", "raise"),),
        (f"{_WATCH}store_that_takes_no_token_ends_the_watch",),
    ),
)
