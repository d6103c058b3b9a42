"""Move and delete on the command line: whose files these are, and which names exist at the target.

Tested by tests/cluster/test_command_folders.py.
"""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import click

from deploy.base.failures import FAILURES
from deploy.base.folders import Place, files_below, names_there
from deploy.base.names_taken import MOVED, IfTaken, decide, delete_replaced
from deploy.base.printed import printable_name
from filestore_client import AsyncClient
from filestore_client.base.errors import Conflict, NotFound
from filestore_client.base.records import FileRecord, FileSummary
from filestore_client.file_batch import AT_ONCE, delete_files, for_each, with_owners
from metadata.model.records import DEFAULT_BUCKET_ID

Failed = list[tuple[str, Exception]]  # the path of each file that was not changed, and why
_OWNERS_SHOWN_MAX = 5


def owner_option(text: str) -> Callable[[Any], Any]:
    """`--owner USER` of a command that changes all files of a folder; `text` is its help."""
    return click.option("--owner", "owners", multiple=True, metavar="USER", help=text)


async def files_to_change(
    client: AsyncClient, bucket_id: str, path: str, owners: Collection[str], *, is_asked: bool = True
) -> list[FileSummary]:
    """Return the files in a folder and below it that the caller wants to change.

    An admin finds the files of all users in the default bucket. If others own some of the files, the user at
    the terminal must confirm, or `owners` says whose files are meant; only those are returned. `is_asked`:
    whether a terminal is asked at all.

    Raises NotFound; Conflict if there is no terminal, or the answer is no.
    """
    found = await with_owners(await files_below(client, bucket_id, path), client.files.get)
    if owners:
        chosen = [file for file in found if file.owner_id in owners]
        if not chosen:
            raise NotFound(f"No file in the folder {printable_name(path)!r} belongs to {', '.join(owners)}.")
        return chosen
    own_id = (await client.whoami()).user_id
    others = Counter(file.owner_id for file in found if file.owner_id != own_id)
    if not others:
        return found
    named = [f"{printable_name(owner)} ({count})" for owner, count in others.most_common(_OWNERS_SHOWN_MAX)]
    more = f" and {len(others) - _OWNERS_SHOWN_MAX} more" if len(others) > _OWNERS_SHOWN_MAX else ""
    whose = f"{others.total()} of the {len(found)} files in {printable_name(path)} belong to other users: "
    told = f"{whose}{', '.join(named)}{more}."
    if not (is_asked and sys.stdin.isatty()):
        raise Conflict(
            f"{told} Nothing was changed. --owner {own_id} takes your files only; repeat --owner for each "
            "user whose files are meant."
        )
    if not click.confirm(f"{told} Change these files too?", err=True):
        raise Conflict(f"{told} Nothing was changed.")
    return found


async def delete_found(client: AsyncClient, files: Sequence[FileSummary]) -> Failed:
    """Delete files; return what failed."""
    failures = await delete_files(files, client.files.delete, collected=FAILURES)
    return [(path_of_file(file), failures[file.file_uuid]) for file in files if file.file_uuid in failures]


async def move_file(
    client: AsyncClient, file: FileRecord, changes: Mapping[str, str], policy: IfTaken | None
) -> tuple[FileRecord | None, Failed]:
    """Change name and folder of a file; return its record, None if it is skipped, and what failed.

    Raises FilestoreError, click.Abort.
    """
    place = changes.get("path", file.path).strip("/"), changes.get("filename", file.filename)
    there = await names_there(client, file.bucket_id, [place], 1)
    older = [each for each in there.get(place, []) if each.file_uuid != file.file_uuid]
    shown = ""
    if older and file.bucket_id != DEFAULT_BUCKET_ID:
        shown = (await client.buckets.get(file.bucket_id)).name
    decided = decide({0: older} if older else {}, policy, bucket=shown, words=MOVED)
    if older and decided is IfTaken.SKIP:
        return None, []
    moved = await client.files.update(file.file_uuid, if_match=file.etag, **changes)
    error = await delete_replaced(client, moved, older) if decided is IfTaken.REPLACE else None
    return moved, [] if error is None else [(path_of_file(moved), error)]


async def move_folder(
    client: AsyncClient,
    bucket_id: str,
    bucket: str,
    folders: Mapping[str, str],
    files: Sequence[FileSummary],
    policy: IfTaken | None,
) -> tuple[int, Failed]:
    """Move files, each into the folder that `folders` has for its own; return how many, and what failed.

    `bucket`: as the user has named it, "" for the default. Raises FilestoreError, click.Abort.
    """
    places: dict[str, Place] = {file.file_uuid: (folders[file.path], file.filename) for file in files}
    there = await names_there(client, bucket_id, {*places.values()}, AT_ONCE)
    taken: dict[int, list[FileSummary]] = {}
    for number, file in enumerate(files):
        older = [each for each in there.get(places[file.file_uuid], []) if each.file_uuid not in places]
        if older:
            taken[number] = older
    decided = decide(taken, policy, bucket=bucket, words=MOVED)
    skipped = {*taken} if decided is IfTaken.SKIP else set()
    failures: Failed = []

    async def move(item: tuple[int, FileSummary]) -> None:
        number, file = item
        try:
            moved = await client.files.update(file.file_uuid, path=folders[file.path] or "/")
            replaced = taken.get(number, []) if decided is IfTaken.REPLACE else []
            if (error := await delete_replaced(client, moved, replaced)) is not None:
                failures.append((path_of_file(moved), error))
        except FAILURES as error:
            failures.append((path_of_file(file), error))

    wanted = [item for item in enumerate(files) if item[0] not in skipped]
    await for_each(wanted, move)
    return len(wanted) - len(failures), failures


def path_of_file(file: FileRecord | FileSummary) -> str:
    """Return the folder and the name of a file."""
    return f"{file.path}/{file.filename}" if file.path else file.filename
