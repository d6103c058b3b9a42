"""`filestore put`: files, whole directories, or standard input."""

import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from ca.errors import FilestoreError as LocalError
from ca.errors import InvalidRequest
from deploy.base.connection import Connection, connection_options
from deploy.base.failures import FAILED, FAILURES, print_failure, reason_of
from deploy.base.folders import Place, path_of
from deploy.base.lookup import find_bucket, is_uuid
from deploy.base.names_taken import IfTaken, decide, delete_replaced, find_taken, if_exists_option
from deploy.base.options import Hours
from deploy.base.output import json_option, print_json, size
from deploy.base.own_files import UserPath
from deploy.base.printed import printable_name
from deploy.base.terminal import ProgressBars, end_at_once_when_interrupted
from deploy.commands.files import KINDS
from filestore_client import AsyncClient
from filestore_client.base.errors import FilestoreError
from filestore_client.base.records import FileRecord, FileSummary, Kind
from filestore_client.file_batch import for_each
from filestore_client.transfer.parallel import PARTS_MAX
from filestore_client.transfer.ranges import CONNECTIONS, CONNECTIONS_MAX
from filestore_client.transfer.upload_memory import Memory
from metadata.model.later_fields import LATER
from metadata.model.records import DEFAULT_BUCKET_ID

LEFT_OUT_SHOWN_MAX = 20
RETENTION_HOURS_MAX = 876000
COMPRESSIONS = ("none", "deflate", "bz2", "xz", "zstd")
VIRT_TYPES = ("docker", "dynamips", "iou", "qemu", "virtualbox", "vmware", "vpcs")
_OPTIONS_OF_A_KIND: Mapping[Kind, Sequence[str]] = {
    "project": (
        "project_id",
        "project_name",
        "version_tag",
        "compression",
        "include_images",
        "include_snapshots",
        "keep_compute_ids",
        "reset_mac_addresses",
        "is_read_only",
    ),
    "image": ("virt_type", "format", "vcpus", "ram_mb"),
}
_WORDS: Mapping[str, Kind] = {
    "project_file": "project",
    "vm": "image",
    "backup": "backup",
}  # by that of the log

Command = TypeVar("Command", bound=Callable[..., Any])
Outcome = FileRecord | FilestoreError | LocalError | OSError
STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to upload, the name that it gets, and the folder that it gets into; "" for the top."""

    path: Path
    filename: str
    folder: str = ""

    @property
    def place(self) -> Place:
        """Its folder and its name in the bucket."""
        return self.folder, self.filename or self.path.name

    def fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of its record, with its folder."""
        return {**given, "path": self.folder} if self.folder else {**given}


Settled = tuple[Wanted, Sequence[FileSummary]]  # with the older files that it replaces


def later_options(command: Command) -> Command:
    """Add an option for each field of a kind that came later."""
    for each in reversed(LATER):
        option = f"--{each.name.replace('_', '-')}"
        is_flag, told = isinstance(each.example, bool), f"{_WORDS[each.kind].title()}: {each.meaning}"
        command = click.option(option, type=type(each.example), is_flag=is_flag, help=told)(command)
    return command


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=UserPath(allow_dash=True))
@click.option("--kind", type=click.Choice(KINDS), help="Store it as this.  [default: by the content]")
@click.option(
    "--recursive",
    "-r",
    is_flag=True,
    help="FILE may be a directory: upload all files below it, but no links, into a folder of its name.",
)
@click.option(
    "--folder", default="", metavar="PATH", help="The folder in the bucket.  [default: the top of the bucket]"
)
@if_exists_option
@click.option("--bucket", default="", help="The name or the id of a bucket.  [default: the default bucket]")
@click.option("--filename", help="The name that downloads get.  [default: the name of the file]")
@click.option("--content-type", help="The media type that downloads get.  [default: by the name]")
@click.option(
    "--retention",
    "retention_period",
    type=Hours(most=RETENTION_HOURS_MAX),
    metavar="HOURS",
    help="Delete the file after this time: 7d, 12h, or a number of hours, at most 876000.  [default: never]",
)
@click.option("--project-id", help="Project: its id.  [default: the name of the file without its ending]")
@click.option("--project-name", help="Project: its name.")
@click.option("--version-tag", help="Project: which version it is.")
@click.option("--compression", type=click.Choice(COMPRESSIONS), help="Project: how it was compressed.")
@click.option("--include-images", is_flag=True, help="Project: the export holds its disk images.")
@click.option("--include-snapshots", is_flag=True, help="Project: the export holds its snapshots.")
@click.option("--keep-compute-ids", is_flag=True, help="Project: it keeps the ids of its computes.")
@click.option("--reset-mac-addresses", is_flag=True, help="Project: an import makes new MAC addresses.")
@click.option("--read-only", "is_read_only", is_flag=True, help="Project: to be opened, not changed.")
@click.option("--virt-type", type=click.Choice(VIRT_TYPES), help="Image: what runs it.  [default: qemu]")
@click.option("--format", help="Image: its format.  [default: by the content]")
@click.option("--vcpus", type=click.IntRange(1, 1024), help="Image: how many processors it wants.")
@click.option("--ram", "ram_mb", type=click.IntRange(1), help="Image: how much memory it wants, in MB.")
@later_options
@click.option(
    "--only-url",
    is_flag=True,
    help="Send the bytes through --url, not to the node that the cluster names (behind a balancer).",
)
@click.option(
    "--connections",
    type=click.IntRange(1, CONNECTIONS_MAX),
    default=CONNECTIONS,
    show_default=True,
    help="The number of files that are sent at once; one file takes one connection.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, PARTS_MAX),
    default=1,
    show_default=True,
    help="The number of parts that a large file is sent in, each over its own connection.",
)
@json_option
@connection_options
def put(
    connection: Connection,
    files: tuple[str, ...],
    kind: Kind | None,
    recursive: bool,
    folder: str,
    if_exists: str | None,
    bucket: str,
    filename: str | None,
    only_url: bool,
    connections: int,
    parallel: int,
    as_json: bool,
    **options: Any,
) -> int:
    """Upload files, and print the file_uuid of each.

    A single - is standard input. For several files, each line is the file_uuid and FILE.

    The kind of a file is detected from its content: a disk image (qcow2, vmdk, vdi, vhdx, iso, raw), an
    exported project, or otherwise a backup. On a terminal the detected kind is printed; --kind overrides it.

    After an interruption, the same command resumes. Of a file of 4 MiB or more, only those parts are sent
    that the newest file of its name and kind lacks. The checksum is compared at the end.
    """
    wanted, is_unread = _wanted(files, filename, path_of(folder), recursive=recursive)
    fields = {name: value for name, value in options.items() if value not in (None, "", False)}
    chosen = _chosen_kind(kind, fields)
    left: list[Wanted] = []

    async def work(client: AsyncClient) -> list[Outcome]:
        if bucket:
            fields["bucket_id"] = bucket if is_uuid(bucket) else (await find_bucket(client, bucket)).bucket_id
        policy = IfTaken(if_exists) if if_exists else None
        settled = await _settle(client, wanted, chosen, fields, connections, bucket, policy)
        left.extend(file for file, _ in settled)
        with ProgressBars() as bars:
            if files == ("-",):
                return [await _put_stdin(client, *file, chosen, fields, only_url, bars) for file in settled]
            return await put_files(
                client,
                settled,
                chosen,
                fields,
                connections=connections,
                parallel=parallel,
                only_url=only_url,
                bars=bars,
            )

    outcomes = connection.run(work)
    if len(outcomes) == 1 and not isinstance(outcomes[0], FileRecord):
        raise outcomes[0]
    paths = [file.path for file in left]
    return _print_outcomes(paths, outcomes, is_guessed=chosen is None, as_json=as_json) or is_unread * FAILED


async def _settle(
    client: AsyncClient,
    wanted: Sequence[Wanted],
    kind: Kind | None,
    fields: Mapping[str, Any],
    connections: int,
    bucket: str,
    policy: IfTaken | None,
) -> list[Settled]:
    """Return the files to upload, each with the older files of its name that it replaces."""

    async def is_repeated(number: int) -> bool:
        file = wanted[number]
        return file.path != STDIN and await client.files.is_begun(
            file.path, kind=kind, filename=file.filename, **file.fields(fields)
        )

    places = {
        number: file.place for number, file in enumerate(wanted) if file.path == STDIN or file.path.is_file()
    }
    bucket_id = fields.get("bucket_id", DEFAULT_BUCKET_ID)
    taken = await find_taken(client, bucket_id, places, connections, is_repeated)
    decided = decide(taken, policy, bucket=bucket)
    if decided is IfTaken.SKIP:
        return [(file, []) for number, file in enumerate(wanted) if number not in taken]
    older = taken if decided is IfTaken.REPLACE else {}
    return [(file, older.get(number, [])) for number, file in enumerate(wanted)]


async def _put_stdin(
    client: AsyncClient,
    file: Wanted,
    older: Sequence[FileSummary],
    kind: Kind | None,
    fields: Mapping[str, Any],
    only_url: bool,
    bars: ProgressBars,
) -> Outcome:
    """Upload standard input. Raises FilestoreError."""
    end_at_once_when_interrupted()
    with bars.bar(file.filename) as progress:
        stored = await client.files.upload(
            sys.stdin.buffer,
            kind=kind or "backup",
            filename=file.filename,
            only_url=only_url,
            progress=progress,
            **file.fields(fields),
        )
    return await delete_replaced(client, stored, older) or stored


async def put_files(
    client: AsyncClient,
    files: Sequence[Settled],
    kind: Kind | None,
    fields: Mapping[str, Any],
    *,
    connections: int,
    parallel: int = 1,
    only_url: bool,
    bars: ProgressBars,
) -> list[Outcome]:
    """Upload files concurrently; return for each file, in order, its record or its failure.

    The state of all uploads is kept until all are stored: repeating the command after a failure makes no
    second record of files that succeeded.
    """
    outcomes: list[Outcome] = [InvalidRequest("not begun")] * len(files)
    memories: list[Memory] = []

    async def put_one(item: tuple[int, Settled]) -> None:
        number, (file, older) = item
        try:
            with bars.bar(str(file.path)) as progress:
                stored, memory = await client.files.upload_remembered(
                    file.path,
                    kind=kind,
                    filename=file.filename,
                    only_url=only_url,
                    parallel=parallel,
                    progress=progress,
                    **file.fields(fields),
                )
            memories.append(memory)
            outcomes[number] = await delete_replaced(client, stored, older) or stored
        except (*FAILURES, OSError) as error:
            outcomes[number] = error

    await for_each(enumerate(files), put_one, connections)
    if len(memories) == len(files):
        for memory in memories:
            memory.forget()
    return outcomes


def _wanted(
    files: tuple[str, ...], filename: str | None, folder: str, *, recursive: bool
) -> tuple[list[Wanted], bool]:
    """The files to upload; and whether there is something that cannot be read.

    Raises click.UsageError, InvalidRequest.
    """
    if files == ("-",):
        return [Wanted(STDIN, filename or "stdin", folder)], False
    if "-" in files:
        raise click.UsageError("- cannot be combined with other files.")
    wanted: list[Wanted] = []
    is_unread = False
    for file in map(Path, files):
        if recursive and file.is_dir():
            paths: list[Path] = []
            is_unread |= _find_below(file, paths)
            top = "" if file.name == ".." else file.name
            inner = (Path(top) / path.relative_to(file).parent for path in paths)
            places = (Path(folder) / each for each in inner)
            wanted += [
                Wanted(path, filename or "", "" if str(place) == "." else place.as_posix())
                for path, place in zip(paths, places, strict=True)
            ]
        else:
            wanted.append(Wanted(file, filename or "", folder))
    if recursive and not wanted:
        raise InvalidRequest(f"There is no file below {', '.join(files)}.")
    if filename is not None and len(wanted) > 1:
        raise click.UsageError("--filename is for one FILE, but several are given.")
    given: dict[Path, Path] = {}
    for each in wanted:
        if (place := each.path.resolve()) in given:
            raise click.UsageError(f"{given[place]} and {each.path} are the same FILE.")
        given[place] = each.path
    return wanted, is_unread


def _find_below(directory: Path, paths: list[Path]) -> bool:
    """Add the files below a directory, and say what is left out. Whether a directory could not be read."""
    unread: dict[str, OSError] = {}
    found: list[Path] = []
    left_out: list[tuple[Path, str]] = []

    def note(error: OSError) -> None:
        unread[str(error.filename)] = error

    for above, directories, names in os.walk(directory, onerror=note):
        if not directories and not names and Path(above) != directory:
            left_out.append((Path(above), "an empty directory"))
        for path in (Path(above, name) for name in (*directories, *names)):
            try:
                mode = path.lstat().st_mode
            except OSError as error:
                note(error)
                continue
            if stat.S_ISREG(mode):
                found.append(path)
            elif not stat.S_ISDIR(mode):
                left_out.append((path, "a link" if stat.S_ISLNK(mode) else "no regular file"))
    paths += sorted(found)
    for path, what in sorted(left_out)[:LEFT_OUT_SHOWN_MAX]:
        click.echo(f"filestore: {path}: left out: {what}", err=True)
    if len(left_out) > LEFT_OUT_SHOWN_MAX:
        more = len(left_out) - LEFT_OUT_SHOWN_MAX
        click.echo(f"filestore: {directory}: left out: {more} more links and special files", err=True)
    for unreadable in unread.values():
        click.echo(f"filestore: {unreadable.filename}: left out: {reason_of(unreadable)}", err=True)
    return bool(unread)


def _chosen_kind(given: Kind | None, fields: Mapping[str, Any]) -> Kind | None:
    """The kind that is given, or the one that the options belong to; None when the content decides.

    Raises click.UsageError for options of another kind.
    """
    chosen, why = given, f"--kind {given}"
    later = ((_WORDS[each.kind], [each.name]) for each in LATER)
    for kind, names in (*_OPTIONS_OF_A_KIND.items(), *later):
        for name in names:
            if name not in fields:
                continue
            if chosen not in (None, kind):
                raise click.UsageError(f"{_option(name)} is for {kind}s, and cannot be combined with {why}.")
            chosen, why = kind, _option(name)
    return chosen


def _option(name: str) -> str:
    """Return the command-line option of a parameter of this command."""
    return next(param.opts[0] for param in put.params if param.name == name)


def _print_outcomes(
    files: Sequence[Path], outcomes: Sequence[Outcome], *, is_guessed: bool, as_json: bool
) -> int:
    """A line for every file; the exit code."""
    code = 0
    for file, outcome in zip(files, outcomes, strict=True):
        name = printable_name(str(file))
        if isinstance(outcome, (*FAILURES, OSError)):
            failed = print_failure(file, outcome)
            code = code or failed
        elif as_json:
            print_json(outcome)
        else:
            line = outcome.file_uuid if len(files) == 1 else f"{outcome.file_uuid}  {name}"
            if not _is_printed(line):
                code = code or FAILED
            elif is_guessed and sys.stderr.isatty():
                click.echo(f"{name}: stored as {_of_kind(outcome)}, {size(outcome.size_bytes)}", err=True)
    return code


def _of_kind(file: FileRecord) -> str:
    if file.kind == "image":
        return f"an image ({getattr(file, 'format', '')})"
    return f"a {file.kind}"


def _is_printed(line: str) -> bool:
    """Print a line about a stored file; if stdout fails, print it on stderr. Return whether stdout worked."""
    try:
        click.echo(line)
    except OSError as error:
        click.echo(f"filestore: stored as {line}, which cannot be printed: {reason_of(error)}", err=True)
        return False
    return True
