"""Deliberate bugs of work that several requests wait for, and of the digests that they declare."""

from tests.mutants.mutant import Mutant

_TESTS = "tests/unit/node/base/test_shared_work.py::test_"
_DIGESTS = "tests/unit/web/headers/test_digests.py::test_"

_WORK = "node/base/shared_work"

SHARED_WORK = (
    Mutant.of(
        "who asks is cancelled with work that was given up",
        _WORK,
        "if found is None or found.is_given_up:",
        "if found is None:",
        f"{_TESTS}who_asks_while_it_is_given_up_has_it_begun_anew_after_its_end",
    ),
    Mutant.of(
        "work is begun anew beside what was given up",
        _WORK,
        "if given_up:",
        "if False:",
        f"{_TESTS}who_asks_while_it_is_given_up_has_it_begun_anew_after_its_end",
    ),
    Mutant.of(
        "work ends with the first who goes away",
        _WORK,
        "if not found.waiting and self._linger_s is not None:",
        "if self._linger_s is not None:",
        f"{_TESTS}it_ends_when_the_last_who_waits_goes_away",
    ),
    Mutant.of(
        "work is given up though somebody came back",
        _WORK,
        "            found.giving_up.cancel()\n",
        "            pass\n",
        f"{_TESTS}it_goes_on_for_who_comes_back_before_it_was_given_up",
    ),
    Mutant.of(
        "whoever is cancelled ends the work",
        _WORK,
        "await asyncio.wait({found.task}, timeout=answer_s)",
        "await asyncio.wait_for(found.task, answer_s)",
        f"{_TESTS}it_goes_on_when_whoever_began_it_has_gone_away",
    ),
    Mutant.of(
        "what work came to is not kept",
        _WORK,
        "if self._keep_s and not task.cancelled():",
        "if False:",
        f"{_TESTS}what_it_came_to_is_kept_for_one_who_comes_back",
    ),
    Mutant.of(
        "work that stands still moves with all others",
        _WORK,
        "self.moved if found.moved is None else found.moved",
        "self.moved",
        f"{_TESTS}number_stays_the_same_only_while_the_work_and_what_it_waits_for_stand_still",
    ),
    Mutant.of(
        "the end of work is cut short by close",
        _WORK,
        "if not task.cancelling():",
        "if True:",
        f"{_TESTS}close_waits_for_what_was_given_up_too",
    ),
    Mutant.of(
        "work is begun after close",
        _WORK,
        "        if self._is_closed:\n",
        "        if False:\n",
        f"{_TESTS}close_ends_it_and_those_who_wait_may_ask_again",
    ),
    Mutant.of(
        "digests that contradict each other are taken",
        "web/headers/digests",
        "if len(agreed) > 1:",
        "if False:",
        f"{_DIGESTS}digests_that_contradict_each_other_say_nothing_of_the_content",
    ),
    Mutant.of(
        "other content than declared is taken",
        "web/headers/digests",
        "if agreed - {found}:",
        "if False:",
        f"{_DIGESTS}other_content_than_declared_is_named_as_such",
    ),
)
