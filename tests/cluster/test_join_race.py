"""Joins that succeed, on a cluster of their own: one token admits once, whoever else tries meanwhile."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from ca.csr import new_csr
from ca.identity import Identity, Role
from ca.jointoken import JoinToken
from ca.keys import new_key
from tests.cluster.harness import Answer, Cluster

PATH = "/cluster/join/filestore"
JOINERS = 10


def request_of(name: str) -> dict[str, object]:
    """The body of a join, with a new key; sent again it is the same joiner."""
    csr = new_csr(new_key(), Identity("development", Role.NODE, name), "127.0.0.1")
    return {"api_port": 19999, "csr": csr, "id": name, "ip_address": "127.0.0.1"}


@pytest.mark.long
def test_one_token_admits_one_of_ten_and_the_same_one_again(own_cluster: Cluster) -> None:
    token = JoinToken.parse(own_cluster.join_token()).bearer
    requests = [request_of(f"joiner-{number}") for number in range(JOINERS)]

    def join(request: dict[str, object]) -> Answer:
        return own_cluster.post(PATH, request, stranger=True, token=token)

    with ThreadPoolExecutor(JOINERS) as pool:
        answers = list(pool.map(join, requests))
    assert sorted(answer.status for answer in answers) == [200] + [401] * (JOINERS - 1)
    winner = next(at for at, answer in enumerate(answers) if answer.status == 200)
    nodes = [node["id"] for node in own_cluster.get("/cluster/nodes").json["nodes"]]
    assert [name for name in nodes if name.startswith("joiner")] == [f"joiner-{winner}"]

    own_cluster.kill(own_cluster.leader())
    again = join(requests[winner])  # its answer was lost, say: the new leader gives the same
    assert (again.status, again.json) == (200, answers[winner].json)
    assert join(request_of("latecomer")).status == 401
    assert join(request_of(f"joiner-{winner}")).status == 401  # the token is used, and this is another key
