"""Reference pages made from the code: `make docs` writes them with `python -m release.reference DIRECTORY`.

Commands with their options, operations of the API, errors and exit codes, metrics.
"""

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from api.routes import METADATA
from api.spec.operation import Operation
from ca.errors import CATALOGUE
from deploy.base import failures
from deploy.cli import SECTIONS, cli
from deploy.gns3.alarms.metrics import metrics_text
from deploy.gns3.identity import ServerIdentity
from deploy.manual import commands
from node.content.routes import OPERATIONS
from release.wheels import ROOT

METRIC: Final = re.compile(r"filestore_\w+")
MEMBERS: Final = {"coordinator": "coordinators", "node": "nodes"}
SHARED: Final = {"--url", "--ca", "--token-file", "--context", "--deadline"}
PREFIX: Final = "/api/v1"
SECTIONS_LINES_MAX: Final = 280  # of one page of commands


def main() -> None:
    """Write every page below the directory that is named on the command line."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (directory / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    result = {"errors.md": _errors(), "operations.md": _operations(), "metrics.md": _metrics()}
    index = ["# Commands", "", "`filestore --help` shows the same list."]
    context = click.Context(cli)
    for section, entries in SECTIONS.items():
        page, alone = f"commands-{section.lower().replace(' ', '-')}.md", []
        index += ["", f"## {section}", "", "| command | what it does |", "|---|---|"]
        for name, entry in entries.items():
            command = cli.get_command(context, name)
            assert command is not None
            leaves = [each for each in commands(command, ("filestore", name)) if not _is_group(each[1])]
            if _is_group(command):
                result |= _group_pages(name, _summary(command), leaves)
            else:
                alone += leaves
            target = f"commands-{name}.md" if _is_group(command) else f"{page}#filestore-{name}"
            index.append(f"| [`filestore {name}`]({target}) | {_cell(entry.summary)} |")
        if alone:
            result[page] = f"# Commands: {section}\n\n" + _sections(alone)
    index += [
        "",
        "## Options of every client command",
        "",
        *_options(command_with_shared_options(), SHARED),
        "",
    ]
    return result | {"commands.md": "\n".join(index)}


def _group_pages(
    name: str, summary: str, leaves: list[tuple[tuple[str, ...], click.Command]]
) -> dict[str, str]:
    """Return the pages of a group: a further one begins where one becomes too long to read."""
    texts = [""]
    for leaf in leaves:
        section = _sections([leaf])
        if (texts[-1] + section).count("\n") > SECTIONS_LINES_MAX:
            texts.append("")
        texts[-1] += section
    names = [f"commands-{name}{f'-{number}' if number else ''}.md" for number in range(len(texts))]
    links = " ".join(f"[{number}]({each})" for number, each in enumerate(names[1:], 1))
    more = f"Further pages: {links}\n\n" if links else ""
    heading = f"# filestore {name}\n\n{summary}\n\n"
    return {each: heading + more + text for each, text in zip(names, texts, strict=True)}


def command_with_shared_options() -> click.Command:
    """Return a command that speaks to a cluster: all of them share the options that say which one."""
    command = cli.get_command(click.Context(cli), "ls")
    assert command is not None
    return command


def _is_group(command: click.Command) -> bool:
    return isinstance(command, click.Group)


def _summary(command: click.Command) -> str:
    return (command.help or "").partition("\n\n")[0].replace("\n", " ")


def _sections(found: list[tuple[tuple[str, ...], click.Command]]) -> str:
    """Return a section for each command: its usage, its help and a table of its options."""
    lines = []
    for words, command in found:
        context = click.Context(command, info_name=" ".join(words))
        usage = " ".join([*words, *command.collect_usage_pieces(context)])
        lines += [f"## {' '.join(words)}", "", "```text", usage, "```", "", *_help(command), ""]
        lines += [*_options(command, set()), ""]
    return "\n".join(lines)


def _options(command: click.Command, names: set[str]) -> list[str]:
    """Return a table of the options with these names, or of those that not all commands share."""
    context = click.Context(command)
    options = [each for each in command.params if isinstance(each, click.Option)]
    are_shared = {each.opts[0] for each in options} >= SHARED
    rows = []
    for option in options:
        is_wanted = option.opts[0] in names if names else not (are_shared and option.opts[0] in SHARED)
        if is_wanted and (record := option.get_help_record(context)) is not None:
            rows.append(f"| `{_cell(record[0])}` | {_cell(record[1])} |")
    return ["| option | meaning |", "|---|---|", *rows] if rows else []


def _help(command: click.Command) -> Iterator[str]:
    r"""Yield the paragraphs of the help. A paragraph that begins with \b keeps its lines."""
    for paragraph in (command.help or "").split("\n\n"):
        is_kept = paragraph.startswith("\b")
        yield (
            f"```text\n{paragraph.removeprefix(chr(8)).strip()}\n```"
            if is_kept
            else " ".join(paragraph.split())
        )
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", ", ").split())


def _errors() -> str:
    """Return the page of the errors of the API and the exit codes of the command."""
    rows = [f"| {kind.status} | `{kind.code}` | {_cell(kind.__doc__ or '')} |" for kind in CATALOGUE]
    codes = re.findall(r"^\| \d.*$", failures.__doc__ or "", re.MULTILINE)
    return "\n".join(
        [
            *("# Errors and exit codes", "", "## Errors of the API", ""),
            'Every error is `{"code", "error", "details"}`. The code never changes.',
            *("", "| status | code | meaning |", "|---|---|---|", *rows, ""),
            *("## Exit codes", "", "| code | meaning |", "|---|---|", *codes, ""),
        ]
    )


def _operations() -> str:
    """Return the page of all operations of the API, by their tags."""
    by_tag: dict[str, list[Operation]] = {}
    for operation in [*METADATA, *OPERATIONS]:
        by_tag.setdefault(operation.tag, []).append(operation)
    lines = [
        "# Operations of the API",
        "",
        f"Paths that begin with `/` are below `{PREFIX}`, if it is not named.",
    ]
    for tag, found in by_tag.items():
        lines += ["", f"## {tag}", "", "| operation | what it does | credential |", "|---|---|---|"]
        for each in found:
            path = each.path.removeprefix(PREFIX)
            lines.append(f"| `{each.method} {path}` | {_cell(each.summary)} | {each.credential} |")
    return "\n".join(lines) + "\n"


def _metrics() -> str:
    """Return the page of all metrics, by the package that has them."""
    found: dict[str, dict[str, str]] = {}
    for package in ("coordinator", "node", "runtime", "web", "metadata"):
        for path in sorted((ROOT / package).rglob("*.py")):
            metrics = declared_metrics(path.read_text(encoding="utf-8"))
            found.setdefault(MEMBERS.get(package, "every process"), {}).update(metrics)
    labs = metrics_text(
        ServerIdentity(), [], ended_at=0, good_at={}, oldest_good_at=0, overdue_after_s=0
    ).decode()
    found["backups of GNS3 labs"] = dict(re.findall(r"^# HELP (\w+) (.+)$", labs, re.MULTILINE))
    lines = ["# Metrics", "", "In `/metrics`, counters have the suffix `_total`."]
    for title, metrics in found.items():
        lines += ["", f"## Metrics of {title}", "", "| metric | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {_cell(meaning)} |" for name, meaning in sorted(metrics.items())]
    return "\n".join(lines) + "\n"


def declared_metrics(source: str) -> dict[str, str]:
    """Return the meaning of each metric, by its name, that a module declares with both as literals."""
    tree = ast.parse(source)
    constants = {
        each.target.id: each.value
        for each in tree.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    found = {}
    for each in ast.walk(tree):
        if isinstance(each, ast.Call):
            pairs = list(pairwise(each.args))
        elif isinstance(each, ast.Dict):
            values = (value.elts[0] if isinstance(value, ast.Tuple) else value for value in each.values)
            pairs = [(key, value) for key, value in zip(each.keys, values, strict=True) if key is not None]
        else:
            continue
        for key, meaning in pairs:
            name = constants.get(key.id) if isinstance(key, ast.Name) else key
            if not (isinstance(name, ast.Constant) and isinstance(meaning, ast.Constant)):
                continue
            if METRIC.fullmatch(str(name.value)):
                found[str(name.value)] = str(meaning.value)
    return found


if __name__ == "__main__":
    main()
