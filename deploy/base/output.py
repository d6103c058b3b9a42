"""The output of commands: tables for people, one JSON object a line for programs, in any encoding.

`--json` prints records with the names and values of the API, so a script may rely on them.

Tested by tests/cluster/test_command_printing.py.
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click
import msgspec
from rich.filesize import decimal

from deploy.base.printed import printable_json, printable_name

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_LARGE_BYTES = 1000  # from here on `size` says it in another unit
_NOT_OF_THE_API = ("etag",)

json_option: Callable[[F], F] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object a line, with the fields of the API."
)


def print_json(value: object) -> None:
    """Print one line of JSON."""
    plain = msgspec.to_builtins(value)
    if isinstance(plain, dict):
        plain = {name: field for name, field in plain.items() if name not in _NOT_OF_THE_API}
    click.echo(json_text(plain))


def json_text(plain: object, *, indent: int | None = None) -> str:
    """Return JSON, with escapes for what the output cannot show and for what would steer a terminal."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower()
    return printable_json(json.dumps(plain, ensure_ascii=not encoding.startswith("utf"), indent=indent))


def print_records(
    records: Iterable[T],
    columns: Mapping[str, Callable[[T], object]],
    *,
    as_json: bool,
    empty: str,
) -> None:
    """A table of records, a line each. `columns`: what each shows; `empty`: what there is to do with none."""
    if as_json:
        for record in records:
            print_json(record)
        return
    rows = [[shown(show(record)) for show in columns.values()] for record in records]
    if not rows:
        click.echo(empty, err=True)
        return
    print_table(list(columns), rows)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on standard output."""
    from deploy.base.tables import table_console  # here: JSON and single lines need no rich

    table_console().print_table(columns, rows)


def print_record(record: object, *, as_json: bool) -> None:
    """One record: a line for each field, or one of JSON."""
    if as_json:
        print_json(record)
        return
    rows = []
    for name, value in msgspec.to_builtins(record).items():
        if name in _NOT_OF_THE_API or value in ("", None, []):
            continue
        rows.append((name, _shown_field(name, value)))
    print_table(("", ""), rows)


def _shown_field(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int) and value >= _LARGE_BYTES:
        return f"{value} ({size(value)})"
    return moment(str(value)) if name.endswith("_at") else shown(value)


def shown(value: object) -> str:
    """A value for people, on one line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return printable_name(str(value))


def size(size_bytes: int) -> str:
    """For people: 1.5 GB."""
    return decimal(size_bytes)


def moment(text: str) -> str:
    """An RFC 3339 time for people, in the local zone: 2026-11-20 13:00 CET. "" stays so."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M %Z") if text else ""
    except ValueError:
        return text


def cold_line(nodes: list[dict[str, Any]]) -> str:
    """Say how much smaller cold replicas are, "" if there are none."""
    content_bytes = sum(node.get("cold_bytes", 0) for node in nodes)
    stored_bytes = sum(node.get("cold_stored_bytes", 0) for node in nodes)
    if not content_bytes or not stored_bytes:
        return ""
    ratio = content_bytes / stored_bytes
    return f"cold replicas: {size(content_bytes)} stored in {size(stored_bytes)} ({ratio:.1f} to 1)"
