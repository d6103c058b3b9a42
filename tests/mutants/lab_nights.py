"""Deliberate bugs of backups of labs night after night: what is gone is not missed, and who ends is not seen.

Each names the quick test that has to catch it.
"""

from tests.mutants.mutant import Mutant

_STATE = "tests/unit/deploy/gns3/test_state.py::test_"
_WATCH = "tests/unit/deploy/gns3/test_watch.py::test_"
_JOURNAL_FILE = "deploy/gns3/journal.py"
_WATCH_FILE = "deploy/gns3/watch.py"
_EARLY = (
    "tests/unit/deploy/gns3/test_fingerprint.py::test_change_is_noticed_before_the_changed_file_has_passed_by"
)
_SOON = f"{_WATCH}run_that_cannot_begin_is_tried_again_soon"
_NAMESAKE = f"{_STATE}server_that_gets_the_name_of_another_one_misses_none_of_its_projects"
_PATIENCE = "tests/unit/deploy/gns3/test_patience.py::test_"

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
        (
            (
                _WATCH_FILE,
                "            except LASTING:\n                raise\n            except FilestoreError",
                "            except FilestoreError",
            ),
        ),
        (f"{_WATCH}server_that_takes_no_password_ends_the_watch",),
    ),
    Mutant(
        "watch ends when the server is away",
        (
            (
                _WATCH_FILE,
                "                if not told:\n                    self._tell(error, RECONNECT_PAUSE_S)\n",
                "                raise error\n",
            ),
        ),
        (f"{_WATCH}server_that_is_away_is_told_and_waited_for",),
    ),
    Mutant(
        "watch ends with a group of errors, which has no exit code",
        ((_WATCH_FILE, "raise failures.exceptions[0] from None", "raise"),),
        (f"{_WATCH}store_that_takes_no_token_ends_the_watch",),
    ),
    Mutant.of(
        "watch waits for a day after a run that could not begin",
        "deploy/gns3/watch",
        "                self._tell(error, pause_s)\n            else:\n                return\n",
        "                self._tell(error, pause_s)\n            return\n",
        _SOON,
    ),
    Mutant.of(
        "watch ends for want of room",
        "deploy/gns3/watch",
        "except (*FAILURES, OSError) as error",
        "except FAILURES as error",
        _SOON,
    ),
    Mutant.of(
        "watch asks every ten seconds for ever",
        "deploy/gns3/watch",
        "pause_s = min(2 * pause_s, RETRY_S_MAX)",
        "pause_s = RETRY_S_MIN",
        f"{_WATCH}pauses_grow_up_to_a_bound",
    ),
    Mutant.of(
        "journal goes by the name of a server",
        "deploy/gns3/journal",
        "{server.id}-{cluster[:8]}.json",
        "{server.name}-{cluster[:8]}.json",
        _NAMESAKE,
    ),
    Mutant.of(
        "metrics go by the name of a server",
        "deploy/gns3/alarms/metrics",
        "filestore_gns3_{server.id}.prom",
        "filestore_gns3_{server.name}.prom",
        _NAMESAKE,
    ),
    Mutant.of(
        "server that was never reached has no age",
        "deploy/gns3/alarms/metrics",
        "        remembered.looked(at=time.time())\n",
        "",
        f"{_STATE}run_that_does_not_reach_its_server_is_recorded_from_the_first_on",
    ),
    Mutant.of(
        "each silent server is young each night",
        "deploy/gns3/journal",
        "self._content.shown_at = min(self._content.shown_at or at, at)",
        "self._content.shown_at = at",
        f"{_STATE}run_that_does_not_reach_its_server_is_recorded_from_the_first_on",
    ),
    Mutant.of(
        "time of a clock that was ahead hides what fails later",
        "deploy/gns3/journal",
        "            memory.good_at = min(memory.good_at, at)\n",
        "",
        f"{_STATE}times_of_a_clock_that_was_ahead_hide_no_later_failure",
    ),
    Mutant.of(
        "each lab waits for a silent server",
        "deploy/gns3/watch",
        "asyncio.timeout(min(QUESTION_S_MAX, self._left_s))",
        "asyncio.timeout(QUESTION_S_MAX)",
        f"{_PATIENCE}unanswered_questions_are_waited_for_until_the_deadline_in_all",
    ),
    Mutant.of(
        "server that answers slowly is given up",
        "deploy/gns3/watch",
        "        asked_at = time.monotonic()\n        try:\n",
        "        asked_at = time.monotonic()\n        self._left_s -= 0.1\n        try:\n",
        f"{_PATIENCE}unanswered_questions_are_waited_for_until_the_deadline_in_all",
    ),
    Mutant.of(
        "no lab is tried after a silent one",
        "deploy/gns3/watch",
        "            return True\n        return False\n",
        "            return True\n        return True\n",
        f"{_PATIENCE}answer_decides_whether_the_next_one_is_tried",
    ),
    Mutant.of(
        "change of a large lab is noticed at its end",
        "deploy/gns3/fingerprint",
        "if (magic, date, time) != (_LOCAL_MAGIC, *expected):",
        "if not magic:",
        _EARLY,
    ),
    Mutant.of(
        "files of other computes are changed each night",
        "deploy/gns3/fingerprint",
        "if entry.date_time < made_at]",
        "if entry.date_time]",
        _EARLY,
    ),
    Mutant.of(
        "report for a person hides a failure",
        "deploy/base/failures",
        "return other if other and code in (0, NEEDS_ATTENTION) else code",
        "return code or other",
        "tests/unit/deploy/base/test_failures.py::test_failure_is_worse_than_what_needs_attention",
    ),
    Mutant.of(
        "prune takes every server that had the name",
        "deploy/gns3/chains",
        "for chain in found}) > 1:",
        "for chain in found}) > 2:",
        "tests/unit/deploy/gns3/test_chains.py::test_name_that_two_servers_have_had_is_no_server",
    ),
)
