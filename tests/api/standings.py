"""Users in every relation to a file that there is, for the matrix of who may do what."""

import http.client
import itertools
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, Final

from deploy.dev_cluster import Member
from deploy.processes import wait_until
from tests.api.expectations import KINDS, Person, grant, person
from tests.cluster.harness import REQUEST_TIMEOUT_S, Answer, Cluster

SOON: Final = timedelta(seconds=2)  # enough to give a permission that will have expired soon


class Level(IntEnum):
    """What a user has on a file or bucket; each level implies the ones below it."""

    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


@dataclass(frozen=True)
class Standing:
    """What a user has on a file and on the bucket that it is in, and where from.

    `given`: the place of a permission (file or bucket), the kind of principal and the level.
    """

    on_file: Level
    on_bucket: Level
    given: tuple[str, str, Level] | None = None


def _standings() -> Iterator[tuple[str, Standing]]:
    none = Level.NONE
    yield "owner of the file", Standing(Level.ADMIN, none)
    yield "owner of the bucket", Standing(Level.ADMIN, Level.ADMIN)
    yield "role admin", Standing(Level.ADMIN, Level.ADMIN)
    for kind, level in itertools.product(("user", "group", "role"), (Level.READ, Level.WRITE, Level.ADMIN)):
        name = f"{kind}, {level.name.lower()}"
        yield f"{name} on the file", Standing(level, none, ("file", kind, level))
        yield f"{name} on the bucket", Standing(level, level, ("bucket", kind, level))
    for place in ("file", "bucket"):
        yield f"expired admin on the {place}", Standing(none, none, (place, "user", Level.ADMIN))
    yield "disabled admin of both", Standing(none, none, ("bucket", "user", Level.ADMIN))
    yield "none", Standing(none, none)


STANDINGS: Final = dict(_standings())
ADMIN, DISABLED = "role admin", "disabled admin of both"


class World:
    """A bucket, and one user for each standing to it and to the files that `file` puts there."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._names = {name: f"p-{uuid.uuid4().hex[:12]}" for name in STANDINGS}
        self.people = {name: self._person(name) for name in STANDINGS}
        self._keeper = self.people["owner of the bucket"].token
        made = cluster.post("/buckets", {"name": uuid.uuid4().hex}, token=self._keeper)
        self.bucket_id = str(made.json["bucket_id"])
        for name in STANDINGS:
            self.give(f"/buckets/{self.bucket_id}", "bucket", name)
        disabled = cluster.request("PUT", f"/auth/users/{self.people[DISABLED].id}", body={"disabled": True})
        assert disabled.json["disabled"] is True

    @contextmanager
    def creating(self) -> Iterator[None]:
        """While the owner of the files may make them: who owns one has nothing on the bucket."""
        path, owner = f"/buckets/{self.bucket_id}", self.people["owner of the file"]
        entry = grant(self.cluster, path, "write", owner.id)
        yield
        assert self.cluster.request("DELETE", f"{path}/permissions/{entry}").status == 200

    def file(self, kind: str, *, content: bool, standing: str = "") -> str:
        """A new file of this kind, where every standing holds, or this one alone. Its id."""
        owner = self.people["owner of the file"]
        made = self.cluster.post(kind, KINDS[kind] | {"bucket_id": self.bucket_id}, token=owner.token).json
        if content:
            assert self.cluster.request("PUT", made["upload_url"], content=b"content").status == 200
        for name in [standing] if standing else STANDINGS:
            self.give(f"/files/{made['file_uuid']}", "file", name)
        return str(made["file_uuid"])

    def wait_until_expired(self, file_uuid: str) -> None:
        """Until what was given for a while on this file, and before it, has ended."""
        late = [self.people[name] for name in STANDINGS if name.startswith("expired")]
        path = f"/files/{file_uuid}/permissions"
        wait_until(
            lambda: all(self.cluster.get(path, token=user.token).status == 403 for user in late),
            what="the end of permissions",
            timeout_s=20,
        )

    def give(self, path: str, target: str, name: str) -> None:
        """What the user of this standing has on a file or bucket."""
        given = STANDINGS[name].given
        if given is None or given[0] != target:
            return
        _, kind, level = given
        fields: dict[str, Any] = {}
        if name.startswith("expired"):
            fields["expires_at"] = (datetime.now(UTC) + SOON).isoformat()
        principal = self.people[name].id if kind == "user" else self._names[name]
        grant(self.cluster, path, level.name.lower(), principal, kind=kind, **fields)

    def _person(self, name: str) -> Person:
        fields: dict[str, Any] = {}
        given = STANDINGS[name].given
        if given is not None and given[1] in ("group", "role"):
            fields[f"{given[1]}s"] = ["other", self._names[name]]
        if name == ADMIN:
            fields["roles"] = ["admin"]
        return person(self.cluster, "standing", **fields)


class KeptConnections:
    """A connection to each node that is used again and again: thousands of requests without a handshake."""

    def __init__(self, cluster: Cluster) -> None:
        self._connections = {
            node.id: http.client.HTTPSConnection(
                "127.0.0.1", node.api_port, timeout=REQUEST_TIMEOUT_S, context=cluster.context
            )
            for node in cluster.nodes
        }

    def request(
        self,
        node: Member,
        method: str,
        path: str,
        *,
        token: str | None,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str],
    ) -> Answer:
        """One request; `path` is absolute."""
        sent = dict(headers)
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        if body is not None:
            content, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        connection = self._connections[node.id]
        connection.request(method, path, body=content, headers=sent)
        response = connection.getresponse()
        received = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, received, response.read())

    def close(self) -> None:
        """End them all."""
        for connection in self._connections.values():
            connection.close()
