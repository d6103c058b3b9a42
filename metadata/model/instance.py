"""A directory of a member and a start of it, as one word: see `metadata.rpc.instances`. Pure."""

import functools
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from ca.errors import InvalidRequest

HEADER: Final = "Filestore-Instance"
PARSED_CACHE_SIZE: Final = 256  # words that were parsed: each message of a connection comes with the same one
_Hex = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]


class Instance(Struct, frozen=True, array_like=True):
    """The id of a directory, which start of it this is, and a random word of the process."""

    directory: _Hex
    start: Annotated[int, Meta(ge=1, lt=2**53)]
    process: _Hex

    def __str__(self) -> str:
        return f"{self.directory}.{self.start}.{self.process}"

    def is_followed_by(self, later: "Instance") -> bool:
        """Whether the later one is this process, or a later start of the same directory."""
        return later.directory == self.directory and (later == self or later.start > self.start)


@functools.lru_cache(PARSED_CACHE_SIZE)
def parse_instance(text: str) -> Instance:
    """The instance in a header. Raises InvalidRequest."""
    directory, _, rest = text.partition(".")
    start, _, process = rest.partition(".")
    try:
        return msgspec.convert([directory, start, process], Instance, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest("malformed instance") from error


def contradiction(known: str, claimed: str) -> str:
    """Return why a process that claims `claimed` cannot be the known one, or "" if it may be.

    Nothing contradicts where one of the two tells none. Raises InvalidRequest.
    """
    if not known or not claimed or known == claimed:
        return ""
    last, now = parse_instance(known), parse_instance(claimed)
    if last.directory != now.directory:
        return "another directory with the same name and certificate is in use"
    if last.is_followed_by(now):
        return ""
    return f"it runs on an old copy of its directory (start {now.start}, but start {last.start} is known)"
