"""Every setting is in docs/settings.md, with its default; and what is there can be set."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from coordinator.admin.offsite import OffsiteConfig
from coordinator.storage.config import CoordinatorConfig
from deploy.cli import cli
from node.base.config import NodeConfig
from tests.rooms import PACKAGES

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (?P<names>`[^|]+`) \| (?P<meaning>[^|]+) \| (?P<default>[^|]+) \|$", re.MULTILINE)
HEADING = re.compile(r"^##+ `?(.+?)`?$", re.MULTILINE)
VARIABLE = re.compile(r"""environ(?:\.get\(|\[)\s*(?:"(\w+)"|(\w+))""")


def rows_of_sections() -> dict[str, dict[tuple[str, ...], str]]:
    """By heading: what each row tells of, and its default."""
    parts = HEADING.split(PAGE)[1:]
    return {
        heading: {
            tuple(re.findall(r"`([^`]+)`", row["names"])): row["default"].strip("` ")
            for row in ROW.finditer(text)
        }
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }


DOCUMENTED = rows_of_sections()


def commands(group: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(group, click.Group):
        context = click.Context(group)
        for part in group.list_commands(context):
            if (command := group.get_command(context, part)) is not None:
                yield from commands(command, f"{name} {part}")
    else:
        yield name, group


COMMANDS = dict(commands(cli, "filestore"))


def plain(default: str | float) -> str:
    return default if isinstance(default, str) else f"{default:.12g}"


@pytest.mark.parametrize(
    ("heading", "config"),
    [("coordinator.json", CoordinatorConfig), ("offsite.json", OffsiteConfig), ("node.json", NodeConfig)],
)
def test_fields_of_a_file_are_those_of_the_page(heading: str, config: Any) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(config)}
    written = {names[0]: default for names, default in DOCUMENTED[heading].items()}
    assert set(written) == set(fields)
    for name, field in fields.items():
        assert (written[name] == "required") == field.required, name
        if isinstance(field.default, int | float):
            assert written[name] == plain(field.default), name


def test_variables_of_the_environment_are_those_of_the_page() -> None:
    """Those that our sources read, and those that click reads for an option."""
    found = {
        option.envvar
        for command in COMMANDS.values()
        for option in command.params
        if isinstance(option, click.Option) and isinstance(option.envvar, str)
    }
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for literal, constant in VARIABLE.findall(text):
                named = re.search(rf'^{constant}\b.* = "(\w+)"$', text, re.MULTILINE) if constant else None
                found.add(literal or (named[1] if named else constant))
    assert found == {names[0] for names in DOCUMENTED["Environment"]}
