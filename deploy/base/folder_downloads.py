"""A folder of a bucket as a directory here: each file is downloaded to its place.

Tested by tests/cluster/test_command_folders.py.
"""

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deploy.base.failures import FAILURES, Failure
from deploy.base.terminal import ProgressBars
from filestore_client import AsyncClient
from filestore_client.base.errors import InvalidRequest
from filestore_client.base.records import FileSummary
from filestore_client.file_batch import for_each

# Those who stored the files chose their names, and a shell would read `.profile` in a home directory.
_HIDDEN: Final = "It is hidden, and the directory was there before; download it by its file_uuid."


@dataclass(slots=True)
class Downloads:
    """The result for a folder. `duplicates`: number of older files of the same name, which are skipped."""

    files: int = 0
    size_bytes: int = 0
    duplicates: int = 0
    failures: list[tuple[Path, Failure | OSError]] = field(default_factory=list)


async def download_folder(
    client: AsyncClient,
    files: list[FileSummary],
    folder: str,
    directory: Path,
    *,
    connections: int,
    replace: bool,
    hidden: bool,
    bars: ProgressBars,
) -> Downloads:
    """Download the files of a folder to the same places below a directory; of equal names the newest.

    A file that exists with the same content is left alone, so that the command can be repeated after an
    interruption. `hidden`: whether hidden files directly in the directory are downloaded.
    """
    places: dict[str, FileSummary] = {}
    for file in sorted(files, key=lambda file: file.created_at):
        inner = file.path[len(folder) :].lstrip("/") if folder else file.path
        places[f"{inner}/{file.filename}" if inner else file.filename] = file
    done = Downloads(duplicates=len(files) - len(places))
    per_file = max(1, connections // max(1, min(connections, len(places))))

    async def fetch(item: tuple[str, FileSummary]) -> None:
        inner, file = item
        try:
            path = _place_in(directory, inner)
            if not await asyncio.to_thread(_is_there, path, file):
                if inner.startswith(".") and not hidden:
                    raise InvalidRequest(_HIDDEN)
                await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
                with bars.bar(inner) as progress:
                    await client.files.download(
                        file.file_uuid, path, connections=per_file, replace=replace, progress=progress
                    )
        except (*FAILURES, OSError) as error:
            done.failures.append((directory / inner, error))
        else:
            done.files += 1
            done.size_bytes += file.size_bytes

    await for_each(sorted(places.items()), fetch, connections)
    return done


def _place_in(directory: Path, inner: str) -> Path:
    """Return the place of a file below a directory. Raises InvalidRequest for one elsewhere."""
    if any(part in ("", ".", "..") or "\0" in part for part in inner.split("/")):
        raise InvalidRequest("Its name is not one of a file here; download it by its file_uuid.")
    return directory / inner


def _is_there(path: Path, file: FileSummary) -> bool:
    """Return whether a file has this content. Raises OSError."""
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == file.blob_sha256
