"""Which server a backup is of, and how the store keeps that: in the `version_tag`. Pure.

    gns3-1:TOPOLOGY:DIGEST@SERVER_ID:NAME      such as ...@9f86d081884c7d65:lab
    gns3-full-1:TOPOLOGY:DIGEST@...            of a whole folder

GNS3 has no identity of its own that a cloned machine would not share, so `filestore gns3 login` draws one.
NAME is what the owner called the server then; only SERVER_ID decides.
"""

import re
import secrets
from dataclasses import dataclass
from typing import Final, Self

from deploy.gns3.fingerprint import Fingerprint

SERVER_ID: Final = re.compile(r"[0-9a-f]{16}")
_SERVER: Final = re.compile(rf"({SERVER_ID.pattern}):([A-Za-z0-9][A-Za-z0-9._-]{{0,62}})")


def draw_server_id() -> str:
    """Return a new random identity for a server."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server. Two are the same if their `id` is; `name` is for people. An empty one is for no backup."""

    id: str = ""
    name: str = ""

    @property
    def shown(self) -> str:
        """For people: `lab (9f86d081884c7d65)`, or `-` for none."""
        return f"{self.name} ({self.id})" if self.id else "-"

    def is_named(self, named: str) -> bool:
        """Whether a person who gives this name or id means this server."""
        return named in (self.id, self.name)


@dataclass(frozen=True, slots=True)
class BackupTag:
    """The `version_tag` of a backup: the fingerprint of its content, and its server."""

    fingerprint: Fingerprint
    server: ServerIdentity = ServerIdentity()

    @property
    def text(self) -> str:
        """The tag as it is stored."""
        return f"{self.fingerprint.tag}@{self.server.id}:{self.server.name}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return what a `version_tag` says; None if it is not that of a backup."""
        head, _, tail = text.partition("@")
        fingerprint, server = Fingerprint.of_tag(head), _SERVER.fullmatch(tail)
        if fingerprint is None or server is None:
            return None
        return cls(fingerprint, ServerIdentity(server[1], server[2]))
