"""Steps of an upload in parts (tus concatenation): partial uploads, and the final one made of them."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from deploy.dev_cluster import Member
from tests.cluster.harness import API, Answer, Cluster

TUS = {"Tus-Resumable": "1.0.0"}
PATCH_TYPE = "application/offset+octet-stream"
BACKUP = {"filename": "nightly.tar", "backup_type": "full"}


def metadata(fields: Mapping[str, str]) -> dict[str, str]:
    pairs = (f"{name} {base64.b64encode(text.encode()).decode()}" for name, text in fields.items())
    return {"Upload-Metadata": ",".join(pairs)} if fields else {}


class Parts:
    """Partial uploads of these pieces, begun and not sent. `fields`: metadata of each."""

    def __init__(self, cluster: Cluster, pieces: Sequence[bytes], *, token: str = "", **fields: str) -> None:
        self.cluster, self.pieces, self.token = cluster, pieces, token
        self.content = b"".join(pieces)
        answers = [begin(cluster, len(piece), token=token, **fields) for piece in pieces]
        assert [answer.status for answer in answers] == [201] * len(pieces), answers
        self.urls = [answer.headers["location"] for answer in answers]
        self.uuids = [str(answer.json["file_uuid"]) for answer in answers]

    def holder(self, number: int) -> Member:
        return next(node for node in self.cluster.nodes if self.urls[number].startswith(node.url))

    def send(
        self, number: int, *, start: int = 0, stop: int | None = None, node: Member | None = None
    ) -> int:
        """The status of the PATCH."""
        url = self.urls[number] if node is None else node.url + urlsplit(self.urls[number]).path
        headers = TUS | {"Upload-Offset": str(start), "Content-Type": PATCH_TYPE}
        piece = self.pieces[number][start:stop]
        return self.cluster.request(
            "PATCH", url, content=piece, headers=headers, token=self.token, timeout_s=60
        ).status

    def send_all(self) -> None:
        assert [self.send(number) for number in range(len(self.pieces))] == [204] * len(self.pieces)

    def head(self, number: int, **options: Any) -> Answer:
        return self.cluster.request(
            "HEAD", self.urls[number], headers=TUS, **{"token": self.token, **options}
        )

    def finish(
        self,
        *,
        node: Member | None = None,
        urls: Sequence[str] | None = None,
        kind: str = "/backups",
        token: str | None = None,
        timeout_s: float = 60,
        **fields: str,
    ) -> Answer:
        """The creation of the final upload."""
        concat = "final;" + " ".join(self.urls if urls is None else urls)
        named = BACKUP if kind == "/backups" else {}
        headers = TUS | {"Upload-Concat": concat} | metadata(named | fields)
        path = f"{API}{kind}" if node is None else f"{node.url}{API}{kind}"
        asked = self.token if token is None else token
        return self.cluster.post(path, headers=headers, token=asked, timeout_s=timeout_s)

    def finish_once_taken(self, **options: Any) -> Answer:
        """Again while the cluster says that it cannot now; bounded by the test's own deadline."""
        while (answer := self.finish(**options)).status == 503:
            pass
        return answer


def begin(
    cluster: Cluster, size_bytes: int | None, *, token: str = "", url: str = "", **fields: str
) -> Answer:
    """The creation of a partial upload."""
    length = {"Upload-Defer-Length": "1"} if size_bytes is None else {"Upload-Length": str(size_bytes)}
    headers = TUS | {"Upload-Concat": "partial"} | length | metadata(fields)
    return cluster.post(url or f"{API}/backups", headers=headers, token=token)


def check_content(cluster: Cluster, file_uuid: str, content: bytes, nodes: Sequence[Member] = ()) -> None:
    """The same bytes come from every node."""
    for node in nodes or cluster.nodes:
        answer = cluster.get(f"/files/{file_uuid}", node=node)
        assert answer.status == 200, (node.id, answer.body[:300])
        assert answer.body == content, node.id
