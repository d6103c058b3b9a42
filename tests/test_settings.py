"""Every setting is in docs/settings.md, with its default; and what is there can be set."""

import re
from collections.abc import Iterable, Iterator
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
EVERYWHERE = "Client commands"
SHARED = {"--url", "--ca", "--token-file", "--context", "--deadline"}
OUTPUT = "--json"  # of nearly all of them


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


def own_options(command: click.Command) -> Iterable[click.Option]:
    """Those that not every client command has."""
    options = [option for option in command.params if isinstance(option, click.Option)]
    is_client = {option.opts[0] for option in options} >= SHARED
    others = [option for option in options if option.opts[0] != OUTPUT]
    return [option for option in others if not (is_client and option.opts[0] in SHARED)]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_options_of_a_command_are_those_of_the_page(name: str) -> None:
    offered = {tuple(option.opts): option for option in own_options(COMMANDS[name])}
    written = DOCUMENTED.get(name, {})
    assert set(written) == set(offered), f"docs/settings.md: the table below `### {name}` has a row an option"
    for names, option in offered.items():
        assert (written[names] == "required") == option.required, names
        if not option.is_flag and isinstance(option.default, str | int | float) and option.default != "":
            assert written[names] == plain(option.default), names


def plain(default: str | float) -> str:
    return default if isinstance(default, str) else f"{default:.12g}"


def test_what_every_client_command_takes_is_told_once() -> None:
    takers = [
        command
        for command in COMMANDS.values()
        if {option.opts[0] for option in command.params if isinstance(option, click.Option)} >= SHARED
    ]
    assert takers
    assert {names[0] for names in DOCUMENTED[EVERYWHERE]} == {*SHARED, OUTPUT}


def test_page_tells_of_no_command_that_is_not_there() -> None:
    told = {heading for heading in DOCUMENTED if heading.startswith("filestore ")}
    assert told <= set(COMMANDS)


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
