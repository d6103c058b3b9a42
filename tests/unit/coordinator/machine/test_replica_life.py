"""Whatever happens in whatever order: no replica that counts is deleted, and none that nobody needs stays."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine import burials, replicas
from tests.unit.replica_world import World

ACTIONS = {  # how often of each
    "store": 6,
    "upload": 3,
    "look": 8,
    "complete": 4,
    "delete": 8,
    "collect": 6,
    "release": 2,
    "trim": 2,
    "pull": 2,
    "mark": 1,
    "recount": 2,
    "remove_dead": 1,
    "expire": 1,
    "serve": 3,
    "read_list": 4,
    "act": 6,
    "report": 4,
    "delete_late": 2,
    "arrive": 4,
    "restart": 2,
    "compare": 2,
    "tell_orphans": 3,
    "drop_orphan": 4,
    "wait": 3,
    "damage": 1,
    "die": 1,
}
NUMBER_MAX = 23  # so that every action reaches all that it can be about
MUTANT_SEEDS = 300
MUTANT_ACTIONS = 250

Action = tuple[str, int]


def live(actions: Sequence[Action], *, pins: bool, reports_first: bool = False) -> None:
    """Do all this, and look after each whether everything is as it must be."""
    world = World(pins=pins, reports_first=reports_first)
    try:
        for name, number in actions:
            getattr(world, name)(number)
            world.check()
        world.settle()
    finally:
        world.close()


def actions_of(seed: int, count: int) -> list[Action]:
    dice = random.Random(seed)
    names = dice.choices(list(ACTIONS), weights=list(ACTIONS.values()), k=count)
    return [(name, dice.randint(0, NUMBER_MAX)) for name in names]


weighted = st.sampled_from([name for name, weight in ACTIONS.items() for _ in range(weight)])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(weighted, st.integers(0, NUMBER_MAX)), max_size=60), st.booleans())
def test_no_replica_that_counts_is_deleted_and_none_that_nobody_needs_stays(
    actions: list[Action], pins: bool
) -> None:
    live(actions, pins=pins)


@pytest.mark.parametrize("seed", range(10))
def test_long_lives_end_well(seed: int) -> None:
    live(actions_of(seed, 400), pins=seed % 2 == 0)


@pytest.mark.parametrize("pins", [True, False])
def test_content_that_is_stored_everywhere_comes_down_to_what_is_wanted(*, pins: bool) -> None:
    live([("store", number) for number in range(8)], pins=pins)


def nothing(*_args: object) -> None:
    """In place of a check."""


@dataclass(frozen=True)
class Mutant:
    """A bug, and a short life that shows it. `check` is left out of `module`, unless it is a node's."""

    name: str
    actions: tuple[Action, ...]
    module: ModuleType | None = None
    check: str = ""

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if self.module is not None:
            monkeypatch.setattr(self.module, self.check, nothing)

    def live(self, actions: Sequence[Action], *, pins: bool) -> None:
        live(actions, pins=pins, reports_first=self.module is None)


DOOMED: Final = (("delete", 0), ("collect", 0))
LOOKED_AT_TWO: Final = (("store", 0), ("upload", 0), ("look", 0), ("look", 2), *DOOMED)
MUTANTS: Final = (
    Mutant(
        "completion does not look at burials",
        (*LOOKED_AT_TWO, ("wait", 2), ("serve", 0), ("serve", 1), ("complete", 0)),
        burials,
        "require_none",
    ),
    Mutant(
        "completion names what is doomed",
        (*LOOKED_AT_TWO, ("complete", 0)),
        replicas,
        "require_unmarked",
    ),
    Mutant(
        "report of an ended process counts",
        (
            ("store", 0),
            *DOOMED,
            *(("read_list", 0), ("act", 0), ("report", 4), ("restart", 0)),
            *(("read_list", 0), ("act", 0), ("arrive", 0)),
        ),
        replicas,
        "require_current",
    ),
    Mutant(
        "orphan that a node deletes may still be named",
        (
            *(("upload", 0), ("look", 0), ("look", 2), ("wait", 2)),
            *(("tell_orphans", 1), ("drop_orphan", 1), ("complete", 0)),
        ),
        burials,
        "bury",
    ),
    Mutant(
        "node reports before it deletes",
        (
            ("store", 0),
            *DOOMED,
            *(("wait", 2), ("serve", 1), ("serve", 2), ("delete_late", 2)),
            *(("store", 2), ("delete_late", 1)),
        ),
    ),
)
every_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@every_mutant
def test_bug_is_found_out_by_the_life_that_shows_it(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    live(mutant.actions, pins=True)
    mutant.begin(monkeypatch)
    with pytest.raises(AssertionError, match=r"does not hold|below its quorum"):
        mutant.live(mutant.actions, pins=True)


@pytest.mark.parametrize("mutant", [MUTANTS[1], MUTANTS[-1]], ids=lambda mutant: mutant.name)
def test_bug_is_found_out_by_chance(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others take a minute: chance has to hit on more steps in a row."""
    mutant.begin(monkeypatch)
    for seed in range(MUTANT_SEEDS):
        try:
            mutant.live(actions_of(seed, MUTANT_ACTIONS), pins=seed % 2 == 0)
        except AssertionError:
            return
    raise AssertionError(f"{mutant.name}: {MUTANT_SEEDS} lives ended well")
