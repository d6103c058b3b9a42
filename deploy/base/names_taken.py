"""Apart from the upload itself: which of its names are there already, and whether both files are kept.

Tested by tests/cluster/test_command_folders.py.
"""

import sys
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Final

import click

from deploy.base.folders import Place, names_there
from deploy.base.printed import printable_name
from filestore_client import AsyncClient
from filestore_client.base.records import FileSummary

_SHOWN_MAX: Final = 5


class IfTaken(StrEnum):
    """The choices for a file whose name exists already."""

    KEEP = "keep"
    REPLACE = "replace"
    SKIP = "skip"


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


def decide(taken: Mapping[int, list[FileSummary]], wanted: IfTaken | None, *, bucket: str) -> IfTaken:
    """Print which names exist already, and return the choice. At a terminal, the user makes it.

    Raises click.Abort.
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
        IfTaken.REPLACE: "the old file is deleted once the new one is stored",
        IfTaken.SKIP: "not uploaded again",
    }[wanted or IfTaken.KEEP]
    click.echo(f"filestore: {line}: {what}.", err=True)
    return wanted or IfTaken.KEEP
