"""A user whose token lies in a file, ends, and is renewed there."""

import secrets
from pathlib import Path

from tests.cluster.harness import Cluster


class Renewed:
    """A user, the file of whose token is renewed when the token has ended."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster, self._user = cluster, f"renewed-{secrets.token_hex(4)}"
        self.file = directory / "user.token"
        self.file.touch(0o600)
        self.renew()

    def end(self) -> None:
        """End the token that the file holds."""
        assert self._cluster.post("/auth/revoke", {"user_id": self._user}).status in (200, 204)

    def renew(self) -> None:
        """Put another token into the file."""
        self.file.write_text(self._cluster.user_token(self._user) + "\n")
