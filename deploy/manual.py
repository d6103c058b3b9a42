"""Manual pages of the `filestore` command, made from its help by `make man`.

One page for each command and each group, `filestore-bucket-create.1` and so on, in the man macros of roff.
They hold no date: the same help gives the same pages.
"""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from deploy.base import failures
from deploy.cli import cli

PROGRAM: Final = "filestore"
_EXIT_CODE: Final = re.compile(r"^\| (\d+) \| (.+) \|$", re.MULTILINE)
_OPTION: Final = re.compile(r"(?<![\w-])(--?[a-z][a-z-]*)")


def main() -> None:
    """Write every page below the directory that is named on the command line."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for words, command in commands(cli, (PROGRAM,)):
        path = directory / f"{'-'.join(words)}.1"
        path.write_text(page(words, command), encoding="utf-8")
        click.echo(path)


def commands(
    command: click.Command, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each command with the words that call it, a group before what is in it."""
    yield words, command
    for name, part in _parts(command):
        yield from commands(part, (*words, name))


def page(words: tuple[str, ...], command: click.Command) -> str:
    """The page of one command, as text of roff."""
    context = click.Context(command, info_name=" ".join(words))
    summary, _, rest = (command.help or "").removeprefix("Filestore: ").partition("\n\n")
    usage = " ".join(command.collect_usage_pieces(context))
    title = "-".join(words)
    lines = [
        f'.TH "{_plain(title.upper())}" "1" "" "{PROGRAM} {version(PROGRAM)}" "Filestore"',
        *(".SH NAME", f"{_plain(title)} \\- {_plain(summary.rstrip('.'))}"),
        *(".SH SYNOPSIS", f"\\fB{_plain(' '.join(words))}\\fR {_plain(usage)}"),
        *(".SH DESCRIPTION", _plain(summary), *_paragraphs(rest)),
    ]
    if parts := _parts(command):
        lines.append(".SH COMMANDS")
        for name, part in parts:
            lines += [
                ".TP",
                f"\\fB{_plain(title)}\\-{_plain(name)}\\fR(1)",
                _plain(part.get_short_help_str(200)),
            ]
    lines.append(".SH OPTIONS")
    for option in command.get_params(context):
        if isinstance(option, click.Option) and (record := option.get_help_record(context)) is not None:
            lines += [".TP", _OPTION.sub(r"\\fB\1\\fR", record[0]).replace("-", "\\-"), _plain(record[1])]
    if command is cli:
        lines.append(".SH EXIT STATUS")
        for code, meaning in _EXIT_CODE.findall(failures.__doc__ or ""):
            lines += [".TP", code, _plain(meaning)]
    else:
        lines += [".SH SEE ALSO", f"\\fB{_plain('-'.join(words[:-1]))}\\fR(1)"]
    return "\n".join(lines) + "\n"


def _parts(command: click.Command) -> list[tuple[str, click.Command]]:
    """Return the commands of a group, in its order; none for a command."""
    if not isinstance(command, click.Group):
        return []
    context = click.Context(command)
    found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
    return [(name, part) for name, part in found if part is not None]


def _paragraphs(text: str) -> Iterator[str]:
    r"""Lines of roff. A paragraph that begins with \b stays as it is written."""
    for paragraph in text.split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if not paragraph.strip():
            continue
        yield ".PP"
        if lines[0].strip() == "\b":
            yield from (".nf", *(_plain(line.strip()) for line in lines[1:]), ".fi")
        else:
            yield _plain(" ".join(paragraph.split()))


def _plain(text: str) -> str:
    """Escape text so that roff prints it unchanged, and options can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    main()
