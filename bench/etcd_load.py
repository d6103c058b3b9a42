"""A process that loads an etcd with puts and linearizable reads; the orders are those of `bench.load`.

python -m bench.etcd_load --port PORT --value-bytes N [--credential FILE --root FILE]
"""

import argparse
import os
import ssl
from pathlib import Path

import uuid_utils
import uvloop

from bench.load import Order, Outcome, measure, serve_orders
from bench.unary import UnaryConnection, connect

KEYS = 1000
PUT, RANGE = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"


class EtcdLoad:
    """Clients of one etcd member, on one connection for puts and one for reads: what costs etcd least."""

    def __init__(self, port: int, value_bytes: int, context: ssl.SSLContext | None) -> None:
        self._port = port
        self._context = context
        value = os.urandom(value_bytes)
        keys = [str(uuid_utils.uuid7()).encode() for _ in range(KEYS)]
        # PutRequest and RangeRequest: field 1 is the key, field 2 of a put the value.
        self._puts = [_field(1, key) + _field(2, value) for key in keys]
        self._ranges = [_field(1, key) for key in keys]
        self._connections: dict[str, UnaryConnection] = {}

    async def obey(self, order: Order) -> Outcome:
        """`create` and `write` are puts, `read` a linearizable read."""
        path, messages = (RANGE, self._ranges) if order.what == "read" else (PUT, self._puts)
        if path not in self._connections:
            self._connections[path] = await connect(self._port, path, self._context)
        connection = self._connections[path]
        return await measure(lambda number: connection.call(messages[number % KEYS]), order)


def client_context(credential: Path, root: Path) -> ssl.SSLContext:
    """Mutual TLS 1.3, as the coordinators have it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cafile=str(root))
    context.load_cert_chain(str(credential))
    context.set_alpn_protocols(["h2"])
    return context


def _field(number: int, value: bytes) -> bytes:
    """A length-delimited protobuf field."""
    length, encoded = len(value), bytearray((number << 3 | 2,))
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + value


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--value-bytes", type=int, required=True)
    parser.add_argument("--credential", type=Path)
    parser.add_argument("--root", type=Path)
    arguments = parser.parse_args()
    context = client_context(arguments.credential, arguments.root) if arguments.credential else None
    load = EtcdLoad(arguments.port, arguments.value_bytes, context)
    uvloop.run(serve_orders(load.obey, Order))


if __name__ == "__main__":
    main()
