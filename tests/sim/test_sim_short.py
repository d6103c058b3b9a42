"""A short storm for every run of the tests, all directed scenarios, and that the simulator is any good."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import MUTANTS, hunting
from tests.mutants.mutant import Mutant, MutantDoesNotFit
from tests.sim import run, scenario
from tests.sim.world import World

SEEDS = 6
STEPS = 5000


@pytest.mark.parametrize("name", scenario.names())
def test_scenario(name: str) -> None:
    scenario.run_named(name)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_promise_is_broken_in_a_storm(seed: int) -> None:
    world = World(seed, steps=STEPS).run()

    assert world.checkers.committed > len(world.genesis.entries), "nothing was ever committed"


def test_one_seed_gives_one_run() -> None:
    first, second = (World(7, steps=2000).run() for _ in range(2))

    assert first.checkers.history == second.checkers.history
    assert first.checkers.leaders == second.checkers.leaders
    assert (first.steps, first.now) == (second.steps, second.now)


def test_every_mutant_fits_the_product() -> None:
    for mutant in MUTANTS:
        mutant.check_fits(hunting.ROOT)

    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 25


def test_no_mutant_uses_a_name_that_is_not_there(tmp_path: Path) -> None:
    """Any test catches a NameError, which proves nothing. It comes of a new name in the product."""
    for number, mutant in enumerate(MUTANTS):
        for name, text in mutant.changed_files(hunting.ROOT).items():
            path = tmp_path / str(number) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--output-format", "concise"]
    found = subprocess.run(
        [*ruff, "--select", "F821,F823", tmp_path], capture_output=True, text=True, check=False
    )
    faults = [line.removeprefix(f"{tmp_path}/").partition("/") for line in found.stdout.splitlines()]

    assert [(MUTANTS[int(number)].name, fault) for number, _, fault in faults] == []
    assert found.returncode == 0, found.stderr


def test_every_test_that_a_mutant_names_is_there() -> None:
    named = sorted({test for mutant in MUTANTS for test in mutant.tests})

    assert hunting.absent(named) == ""


def test_mutant_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "coordinator").mkdir()
    (tmp_path / "coordinator" / "log.py").write_text("twice twice", encoding="utf-8")

    with pytest.raises(MutantDoesNotFit):
        Mutant.of("twice there", "coordinator/log", "twice", "once").plant(tmp_path)


def test_planted_bug_is_caught() -> None:
    (mutant,) = (each for each in MUTANTS if each.name == "acknowledged before the sync")

    found = hunting.hunt(mutant, ["--seeds", "3", "--seeds-alone"])

    assert "before its disk has synced" in found, found


def test_failing_seed_prints_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    totals = run.Totals(seeds=1, failures=[run.Failure(5, "step 9: Violation: a promise")])
    totals.counts["steps"] = 9
    monkeypatch.setattr(run, "run_for", lambda *_arguments, **_options: (totals, 1.0))
    monkeypatch.setattr(run, "journal_directory", lambda: tmp_path)

    status = run.main(["--members", "1"])

    assert status == 1
    printed = capsys.readouterr().out
    assert "replay with: python -m tests.sim --seed 5 --members 1" in printed
    journal = (tmp_path / "filestore-sim-5.txt").read_text(encoding="utf-8")
    assert "m0 writes" in journal, journal[:400]


def test_transcript_that_expects_too_much_fails() -> None:
    with pytest.raises(AssertionError, match="expected leader b"):
        scenario.run_text("members a b c\nelect a\nexpect leader b")
