"""How fast the members compare their states."""

from coordinator.machine.execution.digests import TABLES
from coordinator.member.state_digests import pause_after
from coordinator.storage.config import DIGEST_S
from metadata.protocol.commands import HashState

ROWS_OF_A_FILE = 6  # in files, project_files and blobs, and of three replicas
HOUR_S = 3600.0


def test_a_million_files_are_compared_within_an_hour() -> None:
    rows_max = HashState().rows_max
    full = 1_000_000 * ROWS_OF_A_FILE / rows_max * pause_after(rows_max, rows_max, interval_s=DIGEST_S)
    ends = len(TABLES) * pause_after(0, rows_max, interval_s=DIGEST_S)
    assert full + ends < HOUR_S


def test_members_never_compare_less_often_than_they_are_told() -> None:
    assert pause_after(2000, 2000, interval_s=0.1) == 0.1
    assert pause_after(1999, 2000, interval_s=10.0) == 10.0
