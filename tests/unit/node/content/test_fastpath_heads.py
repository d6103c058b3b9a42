"""Hot downloads under generated heads: whatever a client writes, both ways answer it with the same bytes."""

import hashlib
import math
import os
import random

import pytest

from tests.unit.hot_node import FILE, TOKEN, UUID, exchange, hot_node, record, steady, token
from tests.unit.peer_nodes import Node
from web.rate_limits import TokenBuckets

SEED = int(os.environ.get("HEADS_SEED", "1"))
HEADS = int(os.environ.get("HEADS", "500"))
SIZE_BYTES = 300_000
ODD_SHARE = 0.08
TAKEN_SHARE_MIN = 0.2  # else little was compared

METHODS = ["get", "GET ", "POST", "OPTIONS"]
VERSIONS = ["HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1.1 "]
TARGETS = [
    FILE.replace(UUID, UUID.upper()),
    FILE.replace("api", "%61pi"),
    FILE + "/",
    FILE + "?",
    FILE + "?a=b",
    FILE + "#x",
    "/" + FILE,
    "http://x" + FILE,
    FILE[:-1] + "%61",
    FILE[:-1] + "b",
]
FIELDS = {  # how often it is there, what it may say, and what it seldom says
    "Host": (
        0.98,
        ["x", "[::1]", "h:443"],
        ["a b", "", "h:99999", "exa_mple", "user@x", ":::1]", "[::1", "h:1:2", "h:", "[]"],
    ),
    "Authorization": (
        0.98,
        [f"Bearer {TOKEN}"],
        [
            f"bearer {TOKEN}",
            f"Bearer  {TOKEN}",
            f"Bearer {TOKEN} ",
            f"Bearer {TOKEN}=",
            f"Bearer {TOKEN},Bearer x",
            f"Bearer {token('mallory')}",
            "Bearer x",
            "Basic eDp5",
        ],
    ),
    "Range": (
        0.8,
        ["bytes=0-0", "bytes=1-70000", "bytes=299999-99999999"],
        [
            "bytes=5-3",
            "bytes=-5",
            "bytes=0-",
            "bytes=1-2,4-5",
            "bytes=300000-300001",
            "BYTES=0-1",
            "bytes = 0-1",
            "bytes=0 -1",
            "bytes=00-01",
            "bytes=9999999999999999-9999999999999999",
            "bytes=00000000000000000-1",
            "items=0-1",
            "bytes=0-0 ",
            "bytes=1-+2",
            "",
        ],
    ),
    "Accept": (0.3, ["*/*", "application/json"], ["text/html;q=0", "", "*/*;q=0"]),
    "Accept-Encoding": (0.3, ["identity", "gzip, deflate, br"], ["identity;q=0", "*;q=0", ""]),
    "Connection": (0.3, ["keep-alive", "Keep-Alive"], ["close", "upgrade", "keep-alive, close", "", "TE"]),
    "X-Request-Id": (
        0.3,
        ["abc", "a.b_c-d", "a" * 128],
        ["a" * 129, "a b", "", "\xe4", 'a"b', "<x>"],
    ),
    "User-Agent": (0.2, ["curl", "a(b)"], ["", "x" * 300]),
}
SELDOM = [
    "If-None-Match: *",
    "If-Range: x",
    "Cookie: a=b",
    "Expect: 100-continue",
    "Content-Length: 0",
    "Content-Length: 1",
    "Transfer-Encoding: identity",
    "Transfer-Encoding: chunked",
    "Upgrade: h2c",
    "Want-Repr-Digest: sha-256=1",
    "X: y",
    " folded",
]
ODD_BYTES = [0, 9, 10, 13, 32, 58, 127, 200]


def generated(dice: random.Random) -> bytes:
    """A head: mostly in order, sometimes with a field twice, a rare field, or a byte that is another."""
    lines = []
    for name, (chance, usual, odd) in FIELDS.items():
        if dice.random() < chance:
            spelt = dice.choice([name, name, name.lower(), name.upper()])
            lines.append(f"{spelt}: {_choice(dice, usual, odd)}")
    if lines and dice.random() < 0.1:
        lines.append(dice.choice(lines))
    if dice.random() < 0.1:
        lines.append(dice.choice(SELDOM))
    if dice.random() < 0.5:
        dice.shuffle(lines)
    method, target = _choice(dice, ["GET"], METHODS), _choice(dice, [FILE], TARGETS)
    first = f"{method} {target} {_choice(dice, ['HTTP/1.1'], VERSIONS)}"
    head = bytearray("\r\n".join([first, *lines, "", ""]).encode("latin-1"))
    if dice.random() < 0.1:
        at = dice.randrange(len(head))
        head[at] = dice.choice([*ODD_BYTES, head[at] ^ 32])
    return bytes(head)


def _choice(dice: random.Random, usual: list[str], odd: list[str]) -> str:
    return dice.choice(odd if dice.random() < ODD_SHARE else usual)


async def test_generated_heads_are_answered_alike(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.rpc.view.VIEW_AGE_S_MAX", math.inf)  # no coordinator confirms it here
    dice = random.Random(SEED)
    content = dice.randbytes(SIZE_BYTES)
    nodes[0].store(content)
    known = record(["n1"], size_bytes=SIZE_BYTES, sha256=hashlib.sha256(content).hexdigest())
    async with hot_node(nodes[0], known) as running:
        await running.warm()
        unlimited = TokenBuckets(burst=10 * HEADS, per_s=1.0)
        running.node.services.api.rates.failed_authentication = unlimited
        for _ in range(HEADS):
            head = generated(dice)
            hot = await exchange(running.hot, [head], half_closes=True)
            ordinary = await exchange(running.ordinary, [head], half_closes=True)
            assert steady(hot) == steady(ordinary), head
        assert len(running.taken) >= HEADS * TAKEN_SHARE_MIN, len(running.taken)
