"""What options take for a size, a duration and an end."""

import click
import pytest

from deploy.base.options import Digest, Duration, Expiry, Size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("17", 17),
        ("5k", 5000),
        ("2G", 2_000_000_000),
        ("2GB", 2_000_000_000),
        ("2GiB", 2 << 30),
        ("1Ti", 1 << 40),
    ],
)
def test_size_is_in_the_units_that_it_names(text: str, size_bytes: int) -> None:
    assert Size().convert(text, None, None) == size_bytes


@pytest.mark.parametrize("text", ["", "G", "-1", "1.5G", "1X", "1 G", "1iB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="is not a size"):
        Size().convert(text, None, None)


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("7d", 604800)])
def test_duration_is_seconds(text: str, seconds: int) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_digest_is_in_small_letters_and_has_its_length() -> None:
    assert Digest(4).convert("00Ff", None, None) == "00ff"
    for wrong in ("00f", "00fff", "00fg", "", "٠٠٠٠"):
        with pytest.raises(click.UsageError, match="does not have 4 hexadecimal digits"):
            Digest(4).convert(wrong, None, None)


def test_end_is_a_time_in_utc_or_a_duration_that_is_left_to_the_cluster() -> None:
    until = {"expires_at": "2026-12-24T17:00:00.000Z"}
    assert Expiry().convert("2026-12-24T18:00:00+01:00", None, None) == until
    assert Expiry().convert("7d", None, None) == {"ttl_seconds": 604800}
    with pytest.raises(click.UsageError, match="neither"):
        Expiry().convert("soon", None, None)
