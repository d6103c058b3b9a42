"""Names that a file would get and another file has already: both are kept, or one of them.

Tested by tests/cluster/test_command_folders.py.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import click

from deploy.base.folders import Place, names_there
from deploy.base.printed import printable_name
from filestore_client import AsyncClient
from filestore_client.base.errors import FilestoreError, Gone, NotFound
from filestore_client.base.records import FileRecord, FileSummary

_SHOWN_MAX: Final = 5


class IfTaken(StrEnum):
    """The choices for a file whose name exists already."""

    KEEP = "keep"
    REPLACE = "replace"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class OutcomeWording:
    """How a command says what becomes of the two files."""

    replace: str
    skip: str


UPLOADED: Final = OutcomeWording("the old file is deleted once the new one is stored", "not uploaded again")
MOVED: Final = OutcomeWording("the old file is deleted once the other one is there", "not moved")


def if_exists_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--if-exists` to a command that gives names to files."""
    return click.option(
        "--if-exists",
        type=click.Choice([each.value for each in IfTaken]),
        help="If the name is there already, keep both, replace the old file or skip."
        "  [default: ask, or keep]",
    )(command)


async def find_taken(
    client: AsyncClient,
    bucket_id: str,
    places: Mapping[int, Place],
    connections: int,
    is_repeated: Callable[[int], Awaitable[bool]],
) -> Mapping[int, list[FileSummary]]:
    """Return the files that have the name of one to upload, by its number.

    `is_repeated`: whether an earlier run of the command has begun the upload of this number; then the name is
    its own.
    """
    there = await names_there(client, bucket_id, set(places.values()), connections)
    taken = {number: there[place] for number, place in places.items() if place in there}
    return {number: files for number, files in taken.items() if not await is_repeated(number)}


def decide(
    taken: Mapping[int, list[FileSummary]],
    wanted: IfTaken | None,
    *,
    bucket: str,
    words: OutcomeWording = UPLOADED,
) -> IfTaken:
    """Print which names exist already, and return the choice. At a terminal, the user makes it.

    `bucket`: its name, "" for the default bucket. Raises click.Abort.
    """
    if not taken:
        return wanted or IfTaken.KEEP
    files = [found[0] for found in taken.values()]
    names = [printable_name(f"{file.path}/{file.filename}".lstrip("/")) for file in files]
    more = f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    where = f"bucket {printable_name(bucket)}" if bucket else "the default bucket"
    line = f"{where} has {', '.join(names[:_SHOWN_MAX])}{more} already"
    if wanted is None and sys.stdin.isatty() and sys.stderr.isatty():
        click.echo(f"{line[0].upper()}{line[1:]}.", err=True)
        answer = click.prompt(
            "Keep both, replace the old files, or skip?",
            type=click.Choice([each.value for each in IfTaken]),
            default=IfTaken.KEEP.value,
            err=True,
        )
        return IfTaken(answer)
    what = {
        IfTaken.KEEP: "both are kept",
        IfTaken.REPLACE: words.replace,
        IfTaken.SKIP: words.skip,
    }[wanted or IfTaken.KEEP]
    click.echo(f"filestore: {line}: {what}.", err=True)
    return wanted or IfTaken.KEEP


async def delete_replaced(
    client: AsyncClient, stored: FileRecord, older: Sequence[FileSummary]
) -> FilestoreError | None:
    """Delete the files that another file of their owner replaces; return why something is left, if it is.

    Every user may choose this name, so a file of another owner is kept, and its owner is printed.
    """
    for file in older:
        if file.file_uuid == stored.file_uuid:
            continue
        if file.owner_id != stored.owner_id:
            owner = printable_name(file.owner_id) or "another user"
            click.echo(f"filestore: {file.file_uuid} belongs to {owner}, and is kept.", err=True)
            continue
        try:
            await client.files.delete(file.file_uuid)
        except (NotFound, Gone):  # another client was faster
            continue
        except FilestoreError as error:
            click.echo(f"filestore: {stored.file_uuid} is stored, but not the only one:", err=True)
            return error
    return None
