"""Many small blobs in one request: whatever is sent, none is taken under a name that is not its hash."""

import hashlib
import random

import pytest

from node.uploads.small_copies import decode_small_blobs, encode_small_blobs


def blobs(count: int) -> list[tuple[str, bytes]]:
    rand = random.Random(count)
    contents = [rand.randbytes(rand.choice((0, 1, 100, 5000))) for _ in range(count)]
    return [(hashlib.sha256(content).hexdigest(), content) for content in contents]


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_blobs_arrive_as_they_were_sent(count: int) -> None:
    assert decode_small_blobs(encode_small_blobs(blobs(count))) == blobs(count)


def test_body_that_is_cut_off_is_refused_wherever_that_is() -> None:
    body = encode_small_blobs(blobs(3))
    ends = {len(encode_small_blobs(blobs(3)[:count])) for count in range(4)}
    for stop in range(len(body)):
        if stop not in ends:
            with pytest.raises(ValueError, match="cut off"):
                decode_small_blobs(body[:stop])


def test_body_with_any_other_bit_is_refused() -> None:
    body, rand = encode_small_blobs(blobs(3)), random.Random(1)
    for at in (0, 31, 32, 35, 36, *rand.sample(range(len(body)), 50)):
        damaged = bytearray(body)
        damaged[at] ^= 1 << rand.randrange(8)
        with pytest.raises(ValueError, match="cut off"):
            decode_small_blobs(bytes(damaged))
