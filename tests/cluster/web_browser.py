"""A client that finds the cluster as a browser does: by a public name, and a certificate that it trusts."""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from deploy.dev_cluster import Member
from tests.cluster.harness import API, Answer, Cluster

HOST = "files.example.org"
STRANGER = "127.0.9.2"


class _ByName(http.client.HTTPSConnection):
    """As if the name had been found in the DNS, on this port."""

    def __init__(self, port: int, context: ssl.SSLContext, source: str) -> None:
        super().__init__(HOST, context=context, timeout=60)
        self._place = ("127.0.0.1", port)
        self._source = (source, 0)
        self._tls = context

    def connect(self) -> None:
        plain = socket.create_connection(self._place, timeout=60, source_address=self._source)
        self.sock = self._tls.wrap_socket(plain, server_hostname=HOST)


class Browser:
    """Trusts what `context` does, and not the root of the cluster. `port`: where it asks by itself."""

    def __init__(self, cluster: Cluster, context: ssl.SSLContext, *, port: int = 0) -> None:
        self._cluster = cluster
        self._context = context
        self._port = port or cluster.nodes[0].api_port

    def ask(
        self,
        method: str,
        path: str,
        *,
        member: Member | None = None,
        token: str | None = "",
        content: bytes | Iterator[bytes] | None = None,
        source: str = STRANGER,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Answer:
        """One request by the public address."""
        sent = dict(headers)
        if token is not None:
            sent["Authorization"] = f"Bearer {token or self._cluster.admin_token}"
        port = self._port if member is None else member.api_port
        connection = _ByName(port, self._context, source)
        try:
            connection.request(method, path, body=content, headers=sent)
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, received, response.read())
        finally:
            connection.close()

    def create(self, size_bytes: int, *, member: Member | None = None, **options: Any) -> Any:
        """A new project file; the upload initialisation result."""
        body = json.dumps({"filename": "lab.gns3p", "project_id": "lab", "size_bytes": size_bytes}).encode()
        json_type = {"Content-Type": "application/json", **options.pop("headers", {})}
        path = f"{API}/project-files"
        answer = self.ask("POST", path, member=member, content=body, headers=json_type, **options)
        assert answer.status == 201, answer.body
        return answer.json
