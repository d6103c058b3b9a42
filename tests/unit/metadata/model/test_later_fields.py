"""A field that came later is in every Struct of its kind, optional, and of no other kind."""

import sqlite3
from contextlib import closing
from typing import Any

import msgspec
import pytest
from msgspec import UNSET, Struct

from api.bodies.fields import Request
from api.bodies.files import in_answers, in_filters, in_requests
from api.spec.operation import parameters_of
from api.spec.schemas import Schemas
from metadata.model import later_fields
from metadata.model.later_fields import Later, in_queries, in_the_log, with_later

OF_VMS = (
    Later("vm", "os_name", "The system in the image.", "Debian 12", since=7),
    Later("vm", "disks", "How many disks it needs.", 2, since=7),
    Later("vm", "is_signed", "Somebody has signed it.", True, since=8),
)


class Change(Struct, frozen=True, kw_only=True, tag_field="type", tag="change"):
    """A change as older programs know it."""

    name: str


class Body(Request, frozen=True, kw_only=True):
    """A body as older programs know it."""

    name: str


class Filter(Struct, frozen=True, kw_only=True):
    """What a list could be narrowed by before."""


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later_fields, "LATER", OF_VMS)


def test_command_has_them_and_is_the_same_without() -> None:
    made: Any = with_later("vm", in_the_log)(Change)
    assert with_later("backup", in_the_log)(Change) is Change
    assert made.__struct_fields__ == ("name", "os_name", "disks", "is_signed")
    assert (made.__name__, made.__doc__, issubclass(made, Change)) == ("Change", Change.__doc__, True)
    assert msgspec.msgpack.encode(made(name="a")) == msgspec.msgpack.encode(Change(name="a"))
    known = msgspec.msgpack.decode(msgspec.msgpack.encode(Change(name="a")), type=made)
    assert (known.os_name, known.disks, known.is_signed) == (UNSET, UNSET, UNSET)
    given = made(name="a", os_name="x", disks=1, is_signed=False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=made) == given
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "change", "name": "a", "disks": -1}, made)


def test_request_may_leave_them_out_and_an_answer_shows_labels() -> None:
    body: Any = with_later("vm", in_requests)(Body)
    assert body(name="a").os_name is None
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"name": "a", "os": "x"}, body)
    answer: Any = with_later("vm", in_answers)(Change)
    described = Schemas([answer]).components["Change"]
    assert described["properties"]["os_name"]["description"] == "The system in the image."
    assert described["properties"]["disks"]["examples"] == [2]
    assert {"name", "os_name"} <= {*described["required"]}
    assert {"disks", "is_signed"}.isdisjoint(described["required"])
    assert msgspec.to_builtins(answer(name="a")) == {"type": "change", "name": "a", "os_name": ""}


def test_lists_are_narrowed_by_labels() -> None:
    asked: Any = with_later("vm", in_queries)(Change)
    assert asked.__struct_fields__ == ("name", "os_name")
    assert asked(name="a").os_name == ""
    (parameter,) = parameters_of(with_later("vm", in_filters)(Filter))
    assert (parameter.name, parameter.description) == ("os_name", "The system in the image.")


@pytest.mark.parametrize("field", OF_VMS, ids=lambda field: str(field.name))
def test_each_has_a_table(field: Later) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript("CREATE TABLE files (sequence INTEGER PRIMARY KEY);" + field.schema)
        db.execute("INSERT INTO files VALUES (1)")
        db.execute(f"INSERT INTO {field.table} VALUES (1, ?)", (field.example,))
        assert db.execute(f"SELECT {field.name} FROM vms_{field.name}").fetchall() == [(field.example,)]
