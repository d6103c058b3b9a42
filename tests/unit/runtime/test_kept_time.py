"""The time that is kept when the clocks of all members jump together, over jumps, pauses and restarts."""

from pathlib import Path

import pytest

from runtime.json_files import encode_sealed
from runtime.kept_time import NEAR_MS, STEP_MS, WAIT_S, KeptTime, SavedTime, read_saved

DAY_S = 86_400.0
DAYS_MS = 3 * 86_400_000
HOUR_MS = 3_600_000


class Machine:
    """The clocks of one coordinator: `wall_ms` can be set, `steady_s` cannot."""

    def __init__(self, wall_ms: int = 1_800_000_000_000) -> None:
        self.wall_ms, self.steady_s = wall_ms, 50.0
        self._time = KeptTime(None, self.wall_ms, self.steady_s)

    def wait(self, seconds: float) -> None:
        """Let time pass while the process runs."""
        for _ in range(4):
            self.steady_s += seconds / 4
            self.wall_ms += round(seconds * 250)
            self.kept_ms()

    def kept_ms(self) -> int:
        return self._time.update(self.wall_ms, self.steady_s)

    def behind_ms(self) -> int:
        return self.wall_ms - self.kept_ms()

    def jump_ms(self) -> int:
        return self._time.jump_ms(self.wall_ms, self.steady_s)

    def save(self) -> SavedTime:
        return self._time.to_saved(self.wall_ms, self.steady_s)

    def pause(self, seconds: float) -> None:
        """End the process, and start another one after these seconds, on a machine that was started anew."""
        saved = self.save()
        self.wall_ms += round(seconds * 1000)
        self.steady_s = 7.0
        self._time = KeptTime(saved, self.wall_ms, self.steady_s)
        self.kept_ms()

    def follow(self, leader: "Machine") -> None:
        self._time.follow(leader.kept_ms(), self.steady_s)


def running(seconds: float) -> Machine:
    machine = Machine()
    machine.wait(seconds)
    assert machine.behind_ms() == 0
    return machine


@pytest.mark.parametrize("jump_ms", [DAYS_MS, -DAYS_MS])
def test_jump_that_is_undone_has_changed_nothing(jump_ms: int) -> None:
    machine = running(10 * DAY_S)
    machine.wall_ms += jump_ms
    assert machine.behind_ms() == machine.jump_ms() == jump_ms
    machine.wait(WAIT_S - 1)
    assert machine.behind_ms() == jump_ms
    machine.wall_ms -= jump_ms
    assert (machine.behind_ms(), machine.jump_ms()) == (0, 0)
    machine.wait(2 * DAY_S)
    assert machine.behind_ms() == 0


@pytest.mark.parametrize("jump_ms", [DAYS_MS, -DAYS_MS])
def test_clocks_are_followed_a_day_after_the_jump(jump_ms: int) -> None:
    machine = running(10 * DAY_S)
    machine.wall_ms += jump_ms
    machine.kept_ms()
    machine.wait(WAIT_S)
    assert (machine.behind_ms(), machine.jump_ms()) == (0, 0)


def test_jump_back_soon_after_the_first_start_is_followed_soon_and_one_ahead_after_a_day() -> None:
    ahead, back = running(600), running(600)
    ahead.wall_ms += DAYS_MS
    back.wall_ms -= DAYS_MS
    for machine in (ahead, back):
        machine.kept_ms()
        machine.wait(599)
    assert (ahead.behind_ms(), back.behind_ms()) == (DAYS_MS, -DAYS_MS)
    for machine in (ahead, back):
        machine.wait(1)
    assert (ahead.behind_ms(), back.behind_ms()) == (DAYS_MS, 0)
    ahead.wait(WAIT_S - 600)
    assert ahead.behind_ms() == 0


def test_only_what_the_clocks_showed_for_the_whole_day_is_followed() -> None:
    machine = running(10 * DAY_S)
    machine.wall_ms += HOUR_MS
    assert machine.behind_ms() == HOUR_MS
    machine.wait(WAIT_S / 2)
    machine.wall_ms += DAYS_MS
    assert machine.jump_ms() == DAYS_MS + HOUR_MS
    machine.wait(WAIT_S / 2)
    assert machine.behind_ms() == DAYS_MS
    machine.wait(WAIT_S - 10)
    assert machine.behind_ms() == DAYS_MS
    machine.wait(10)
    assert machine.behind_ms() == 0


def test_step_back_is_followed_at_once() -> None:
    machine = running(10 * DAY_S)
    machine.wall_ms -= STEP_MS
    assert machine.behind_ms() == 0
    machine.wall_ms -= STEP_MS + 1
    assert machine.behind_ms() == -STEP_MS - 1


def test_small_step_ahead_waits_and_is_no_jump() -> None:
    machine = running(10 * DAY_S)
    machine.wall_ms += STEP_MS
    assert (machine.behind_ms(), machine.jump_ms()) == (STEP_MS, 0)


def test_start_with_clocks_ahead_ends_nothing_however_often_it_is_repeated() -> None:
    machine = running(600)
    machine.wall_ms += DAYS_MS
    for _ in range(100):
        machine.pause(60)
        machine.wait(300)
        assert machine.behind_ms() >= DAYS_MS
    machine.wall_ms -= DAYS_MS
    assert machine.behind_ms() == 100 * 60_000
    machine.pause(60)
    machine.wait(WAIT_S)
    assert machine.behind_ms() < NEAR_MS


def test_restarts_within_minutes_leave_no_doubt() -> None:
    machine = running(600)
    for _ in range(100):
        machine.pause(NEAR_MS / 1000)
        assert machine.behind_ms() == 0
        machine.wait(5)
    machine.pause(NEAR_MS / 1000 + 1)
    assert machine.behind_ms() == NEAR_MS + 1000


@pytest.mark.parametrize(("ran_s", "off_s"), [(12 * 3600.0, 12 * 3600.0), (4 * 3600.0, 7 * DAY_S)])
def test_lab_that_is_switched_off_again_and_again_is_behind_by_the_last_pause_alone(
    ran_s: float, off_s: float
) -> None:
    machine = running(ran_s)
    for _ in range(20):
        machine.pause(off_s)
        assert off_s * 1000 <= machine.behind_ms() <= 2 * off_s * 1000
        assert machine.jump_ms() == 0  # it would be told each day
        machine.wait(ran_s)
    assert machine.behind_ms() <= 2 * off_s * 1000


def test_time_of_a_cluster_that_starts_with_clocks_behind_goes_on_from_where_it_was() -> None:
    machine = running(10 * DAY_S)
    machine.pause(60)
    machine.wait(WAIT_S)
    before_ms = machine.kept_ms()
    machine.pause(-10_000_000.0)
    assert machine.kept_ms() == before_ms
    assert machine.jump_ms() == -10_000_000_000


def test_coordinator_that_was_off_alone_takes_over_the_time_of_the_leader() -> None:
    leader, other = running(10 * DAY_S), running(10 * DAY_S)
    leader.wait(7 * DAY_S)
    other.pause(7 * DAY_S)
    assert other.behind_ms() == 7 * DAY_S * 1000
    other.follow(leader)
    assert other.behind_ms() == 0
    leader.wall_ms -= 1000  # such as an answer takes: it must not add up with each leader
    other.follow(leader)
    assert other.behind_ms() == 0


def test_coordinator_that_is_new_during_a_jump_takes_over_the_time_of_the_leader() -> None:
    leader = running(10 * DAY_S)
    leader.wall_ms += DAYS_MS
    new = Machine(leader.wall_ms)
    assert new.behind_ms() == 0
    new.follow(leader)
    new.wait(WAIT_S - 1)
    leader.wait(WAIT_S - 1)
    assert (leader.behind_ms(), new.behind_ms()) == (DAYS_MS, DAYS_MS)


def test_saved_time_is_read_again_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    machine, path = running(600), tmp_path / "time.json"
    assert read_saved(path, "c1") is None
    machine.wall_ms += DAYS_MS
    saved = machine.save()
    assert saved.kept_ms == machine.kept_ms()
    path.write_bytes(encode_sealed(saved, of="c1"))
    assert read_saved(path, "c1") == saved
    assert read_saved(path, "c2") is None
    path.write_bytes(path.read_bytes().replace(b"ahead_ms", b"behind_s"))
    assert read_saved(path, "c1") is None
