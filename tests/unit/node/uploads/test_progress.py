"""When the log hears of an upload: often enough for what a lost holder costs, and not for every few bytes."""

import pytest

from node.uploads.progress import RENEW_S, REPORT_BYTES, REPORT_GAP_S, REPORT_S, is_report_due


@pytest.mark.parametrize(
    ("new_bytes", "since_s", "due"),
    [
        (REPORT_BYTES, REPORT_GAP_S, True),
        (100 * REPORT_BYTES, REPORT_GAP_S / 2, False),
        (REPORT_BYTES - 1, REPORT_S / 2, False),
        (1, REPORT_S, True),
        (0, REPORT_S, False),
        (0, RENEW_S, True),
    ],
    ids=["enough", "enough-but-at-once", "few", "few-for-long", "none", "none-but-its-end-moves-on"],
)
def test_report_is_due_by_bytes_and_by_time(new_bytes: int, since_s: float, due: bool) -> None:
    assert is_report_due(new_bytes, since_s) is due
