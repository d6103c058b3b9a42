"""What `--help` shows: a whole sentence for each command and each option, on a terminal of 80 columns."""

import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from deploy.cli import ENTRIES, SECTIONS, cli

COLUMNS = 80
COMMAND_ROW = re.compile(r"^  ([a-z][a-z0-9-]*) +(\S.*)$", re.MULTILINE)


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Groups and commands, the outermost first."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for part in command.list_commands(context):
            found = command.get_command(context, part)
            assert found is not None
            yield from commands(found, f"{name} {part}")


COMMANDS = dict(commands(cli, "filestore"))
GROUPS = sorted(name for name, command in COMMANDS.items() if isinstance(command, click.Group))


def help_of(name: str) -> str:
    context = click.Context(COMMANDS[name], info_name=name, terminal_width=COLUMNS)
    return COMMANDS[name].get_help(context)


@pytest.mark.parametrize("name", GROUPS)
def test_no_line_of_a_list_of_commands_is_cut_off(name: str) -> None:
    rows = COMMAND_ROW.findall(help_of(name).partition("Options:")[2])
    assert rows
    assert [row for row in rows if row[1].endswith("...")] == []


@pytest.mark.parametrize("name", GROUPS)
def test_list_of_commands_has_one_line_for_each(name: str) -> None:
    shown = help_of(name).partition("Options:")[2]
    group = COMMANDS[name]
    assert isinstance(group, click.Group)
    named = {row[0] for row in COMMAND_ROW.findall(shown)}
    assert named == set(group.list_commands(click.Context(group)))


def test_every_command_stands_in_one_section() -> None:
    names = [name for section in SECTIONS.values() for name in section]
    assert sorted(names) == sorted(set(names))
    assert {name.split()[1] for name in COMMANDS if " " in name} == set(names)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_summary_is_what_the_command_itself_says(name: str) -> None:
    assert ENTRIES[name].summary == COMMANDS[f"filestore {name}"].get_short_help_str(200)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_says_what_it_is_for(name: str) -> None:
    options = [param for param in COMMANDS[name].params if isinstance(param, click.Option)]
    assert [option.name for option in options if len((option.help or "").partition("[")[0]) < 8] == []


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_begins_with_a_short_sentence_of_its_own(name: str) -> None:
    first = (COMMANDS[name].help or "").partition("\n\n")[0]
    assert first.endswith(".")
    assert "\n" not in first
    assert len(first) <= COLUMNS
    assert all(len(line) <= COLUMNS for line in help_of(name).splitlines())


def test_commands_that_need_no_tables_signatures_and_metrics_do_not_wait_for_them() -> None:
    code = "import deploy.cli, deploy.commands.gns3.group, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    modules = set(loaded.stdout.split())
    assert "aiohttp" in modules
    assert modules.isdisjoint({"rich.console", "cryptography", "jwt", "prometheus_client"})
