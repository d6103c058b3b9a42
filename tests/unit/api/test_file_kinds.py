"""The descriptions of the kinds of file fit together: their Structs, and the checks of their fields."""

import dataclasses
import typing
from types import NoneType
from typing import Any

import msgspec
import pytest
from msgspec import UnsetType

from api import backups, project_files, vms
from api.bodies.files import CreateFileBody, FileBody, ListFilter, UpdateFileBody
from api.file_kinds import FileKind, own_fields
from api.spec.schemas import Schemas
from metadata.protocol.commands import CreateFile, UpdateFile
from metadata.protocol.queries import ListFilesQuery

KINDS = (project_files.KIND, vms.KIND, backups.KIND)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def simple_type(struct: type[msgspec.Struct], name: str) -> type:
    """What a field holds where it holds something: text, a number, or a flag."""
    hint: Any = typing.get_type_hints(struct)[name]
    is_literal = typing.get_origin(hint) is typing.Literal
    parts = (hint,) if is_literal else typing.get_args(hint) or (hint,)
    values = {typing.get_args(part) or part for part in parts if part not in (NoneType, UnsetType)}
    (value,) = values
    found: type = type(value[0]) if isinstance(value, tuple) else value
    return found


@every_kind
def test_field_has_one_type_from_the_body_to_the_record(kind: FileKind) -> None:
    pairs: list[tuple[type[msgspec.Struct], type[msgspec.Struct], type[msgspec.Struct]]] = [
        (kind.create_body, kind.create_command, CreateFileBody),
        (kind.update_body, kind.update_command, UpdateFileBody),
        (kind.body, kind.record, FileBody),
        (kind.list_filter, kind.list_query, ListFilter),
    ]
    for body, other, base in pairs:
        for name in own_fields(body, base):
            assert simple_type(body, name) is simple_type(other, name), f"{body.__name__}.{name}"


@every_kind
def test_field_that_may_be_left_out_has_a_default_in_the_command(kind: FileKind) -> None:
    pairs: list[tuple[type[msgspec.Struct], type[msgspec.Struct], type[msgspec.Struct]]] = [
        (kind.create_body, kind.create_command, CreateFile),
        (kind.update_body, kind.update_command, UpdateFile),
    ]
    for body, command, base in pairs:
        absent = {each.name for each in msgspec.structs.fields(body) if each.default is None}
        required = {each.name for each in msgspec.structs.fields(command) if each.required}
        assert not absent & required & {*own_fields(command, base)}


@every_kind
def test_field_with_a_pattern_is_held_to_it(kind: FileKind) -> None:
    properties = Schemas([kind.create_body]).components[kind.create_body.__name__]["properties"]
    patterned = {
        name
        for name in own_fields(kind.create_body, CreateFileBody)
        if any("pattern" in each for each in (properties[name], *properties[name].get("anyOf", ())))
    }
    assert patterned <= kind.checks.keys()


@pytest.mark.parametrize("struct", ["create_body", "update_body", "body", "list_filter", "list_body"])
def test_kind_whose_structs_do_not_fit_is_refused(struct: str) -> None:
    others = {struct: getattr(project_files.KIND, struct)}
    with pytest.raises(AssertionError):
        dataclasses.replace(vms.KIND, **others)


@pytest.mark.parametrize("checks", ["checks", "filter_checks"])
def test_check_of_no_field_is_refused(checks: str) -> None:
    others: dict[str, Any] = {checks: {"nothing": lambda text, _: text}}
    with pytest.raises(AssertionError):
        dataclasses.replace(vms.KIND, **others)


def test_own_fields_are_those_beside_the_base_in_their_order() -> None:
    assert own_fields(vms.KIND.list_query, ListFilesQuery)[0] == "md5"
    assert own_fields(backups.KIND.list_filter, ListFilter) == ()
    assert own_fields(vms.KIND.create_command, CreateFile)[:2] == ("virt_type", "format")
