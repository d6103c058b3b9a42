"""A few of the trials that `make healing` runs by thousands, and whether a trial finds what it must find."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.healing import trials
from tests.healing.harms import Harm
from tests.healing.trial_outcomes import Outcome
from tests.healing.trials import Subject

SEED = 1
SOME = {
    "node": (1, [29, 57, 114]),
    "coordinator": (2, [10, 88, 123]),
}  # seed and trials that found faults once


@pytest.mark.parametrize("name", SOME)
def test_member_on_damaged_files_is_right_or_says_why_not(tmp_path: Path, name: str) -> None:
    seed, numbers = SOME[name]
    trials.SUBJECTS[name].prepare(tmp_path / "originals" / name, seed)
    report = trials.run(tmp_path / "originals", tmp_path, numbers, seed, [name], 1)
    assert report.done == len(numbers)
    assert report.faults == []


def _prepare(directory: Path, _seed: int) -> None:
    for state in ("older", "newer"):
        path = directory / state / "data" / "file"
        path.parent.mkdir(parents=True)
        path.write_bytes(state.encode() * 1000)


def _hang(_directory: Path, _model: Path, _harms: Sequence[Harm]) -> Outcome:
    time.sleep(600)
    return Outcome()


def _fail(_directory: Path, _model: Path, _harms: Sequence[Harm]) -> Outcome:
    outcome = Outcome()
    with outcome.refusing("refused"):
        raise OSError("a disk that refuses")
    with outcome.refusing("not refused"):
        raise KeyError("a traceback")
    return outcome


def _compare(directory: Path, _model: Path, harms: Sequence[Harm]) -> Outcome:
    written = (directory / "data" / "file").read_bytes()
    return Outcome(faults=["nothing was harmed"] if written == b"newer" * 1000 or not harms else [])


@pytest.mark.parametrize(
    ("try_it", "told"),
    [(_hang, ["it had not ended after its time"]), (_fail, ["KeyError: 'a traceback'"]), (_compare, [])],
)
def test_trial_finds_what_hangs_and_what_says_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: object, told: list[str]
) -> None:
    deadline_s = 0.5 if try_it is _hang else 20.0
    made = Subject(_prepare, try_it, ("data",), deadline_s)  # type: ignore[arg-type]
    monkeypatch.setitem(trials.SUBJECTS, "node", made)
    made.prepare(tmp_path / "originals" / "node", SEED)
    report = trials.run(tmp_path / "originals", tmp_path, [0], SEED, ["node"], 1)
    assert [part in fault for part, (_, fault) in zip(told, report.faults, strict=True)] == [True] * len(told)
