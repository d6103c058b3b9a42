"""Answers are made from records by the names of their fields."""

import pytest
from msgspec import UNSET, Struct, UnsetType

from api.bodies.views import shown


class Record(Struct, frozen=True, kw_only=True):
    """As the state machine replies it."""

    name: str
    size_bytes: int | None = None
    reserved_bytes: int | UnsetType = UNSET
    created_at_ms: int
    ended_at_ms: int | None = None
    took_ms: int = 5
    secret: str = "s"


class Body(Struct, frozen=True, kw_only=True):
    """As the API answers it."""

    id: str
    name: str
    size_bytes: int | UnsetType = UNSET
    reserved_bytes: int = 0
    created_at: str
    ended_at: str
    took_ms: int


def test_fields_are_those_of_the_same_name_and_times_are_text() -> None:
    body = shown(Body, Record(name="a", created_at_ms=1_764_000_000_000), id="1")
    assert body == Body(
        id="1",
        name="a",
        size_bytes=UNSET,
        reserved_bytes=0,
        created_at="2025-11-24T16:00:00.000Z",
        ended_at="",
        took_ms=5,
    )


def test_what_is_given_counts_before_the_record() -> None:
    record = Record(name="a", size_bytes=0, reserved_bytes=7, created_at_ms=0)
    body = shown(Body, record, id="1", name="b")
    assert (body.name, body.size_bytes, body.reserved_bytes, body.created_at) == ("b", 0, 7, "")


def test_field_that_nobody_says_is_a_fault() -> None:
    with pytest.raises(TypeError, match="id"):
        shown(Body, Record(name="a", created_at_ms=0))
