"""Digests that several have declared for one content."""

import pytest

from ca.errors import ChecksumMismatch
from web.headers.digests import WrongContent, agreed_sha256

A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("declared", "agreed"), [((), ""), (("", ""), ""), ((A, ""), A), (("", A), A), ((A, A), A)]
)
def test_content_is_what_all_say_who_say_something(declared: tuple[str, ...], agreed: str) -> None:
    assert agreed_sha256(*declared) == agreed
    assert agreed_sha256(*declared, found=agreed or B) == (agreed or B)


@pytest.mark.parametrize("found", [None, A, B])
def test_digests_that_contradict_each_other_say_nothing_of_the_content(found: str | None) -> None:
    with pytest.raises(ChecksumMismatch, match="contradict each other") as refusal:
        agreed_sha256(A, "", B, found=found)
    assert not isinstance(refusal.value, WrongContent)


@pytest.mark.parametrize("declared", [(A,), (A, ""), ("", A), (A, A)])
@pytest.mark.parametrize("found", [B, ""])
def test_other_content_than_declared_is_named_as_such(declared: tuple[str, ...], found: str) -> None:
    with pytest.raises(WrongContent, match=f"SHA-256 {found}, but {A} was declared"):
        agreed_sha256(*declared, found=found)
