"""Archives encrypted for the owners of keys, in the format of age (age-encryption.org/v1). Streams only.

Nodes and administrators of the cluster see neither content nor names of files. pyrage is an optional part of
this program: `filestore[encryption]`.

Tested by tests/unit/deploy/gns3/folders/test_encryption.py.
"""

import io
import queue
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from ca.errors import Conflict, InvalidRequest

ENDING: Final = ".age"
PIECE_BYTES: Final = 1 << 20
PIECES_MAX: Final = 4  # that wait for their reader
GIVE_UP_POLL_S: Final = 0.1
KEYS_BYTES_MAX: Final = 1 << 20


def _pyrage() -> Any:
    try:
        import pyrage
    except ImportError:
        raise InvalidRequest(
            "Encryption needs the package pyrage: install filestore with `filestore[encryption]`."
        ) from None
    return pyrage


def read_recipients(path: Path) -> list[Any]:
    """Return the public keys of age (`age1...`) in a file, one a line. Raises InvalidRequest."""
    age = _pyrage()
    try:
        found = [age.x25519.Recipient.from_str(line) for line in _lines(path)]
    except (age.RecipientError, ValueError):  # whose text may have a part of a secret key
        raise InvalidRequest(f"{path} has a line that is no public key of age.") from None
    if not found:
        raise InvalidRequest(f"{path} has no public key.")
    return found


def read_identities(path: Path) -> list[Any]:
    """Return the secret keys of age in a file, one a line. Raises InvalidRequest."""
    age = _pyrage()
    try:
        found = [age.x25519.Identity.from_str(line) for line in _lines(path)]
    except (age.IdentityError, ValueError):
        raise InvalidRequest(f"{path} has a line that is no secret key of age.") from None
    if not found:
        raise InvalidRequest(f"{path} has no secret key.")
    return found


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            text = file.read(KEYS_BYTES_MAX).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path}: cannot read keys: {error}") from None
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def encrypted_pieces(pieces: Iterator[bytes], recipients: Sequence[Any]) -> Generator[bytes, None, None]:
    """Yield the encrypted bytes of a stream in pieces of PIECE_BYTES; the last one may be smaller.

    Reads in a thread of its own. Raises what `pieces` raises.
    """
    age = _pyrage()
    ready: queue.Queue[bytes | None] = queue.Queue(PIECES_MAX)
    source, target = _Source(pieces), _Target(ready)

    def work() -> None:
        try:
            age.encrypt_io(io.BufferedReader(source, PIECE_BYTES), target, recipients)
            target.end()
        finally:
            ready.put(None)

    with ThreadPoolExecutor(1, "encryption") as pool:
        done = pool.submit(work)
        try:
            while (piece := ready.get()) is not None:
                yield piece
            if source.failure is not None:
                raise source.failure
            done.result()
        finally:
            target.is_given_up = True
            while not done.done():  # it may wait for a reader
                with suppress(queue.Empty):
                    ready.get(timeout=GIVE_UP_POLL_S)


def decrypt(source: BinaryIO, target: BinaryIO, identities: Sequence[Any]) -> None:
    """Write the content of an encrypted stream. Blocks.

    Raises Conflict if no key fits, or if it is damaged.
    """
    age = _pyrage()
    try:
        age.decrypt_io(source, target, identities)
    except age.DecryptError as error:
        raise Conflict(f"It cannot be decrypted: {error}.") from error
    except OSError as error:
        if error.errno is not None:  # of a disk or the store
            raise
        raise Conflict(f"It cannot be decrypted: {error}.") from error


class _Source(io.RawIOBase):
    """A stream of pieces as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self._pieces, self._held = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            while not self._held:
                self._held = memoryview(next(self._pieces))
        except StopIteration:
            return 0
        except Exception as error:  # the library would make a text of it
            self.failure = error
            raise
        size = min(len(buffer), len(self._held))
        buffer[:size], self._held = self._held[:size], self._held[size:]
        return size


class _Target:
    """Collects what the library writes."""

    def __init__(self, ready: "queue.Queue[bytes | None]") -> None:
        self.is_given_up = False
        self._ready, self._held = ready, bytearray()

    def write(self, part: bytes) -> int:
        """Take a part. Raises BrokenPipeError if its reader has gone."""
        if self.is_given_up:
            raise BrokenPipeError
        self._held += part
        if len(self._held) >= PIECE_BYTES:
            self.end()
        return len(part)

    def flush(self) -> None:
        """Do nothing: `end` passes the rest on."""

    def end(self) -> None:
        """Pass on what is held."""
        self._ready.put(bytes(self._held))
        self._held.clear()
