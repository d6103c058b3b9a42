"""Counts, times and log lines of the calls that a coordinator answers. Apart from how they are answered.

A line is written for every change that a member requests on behalf of a client, and for every rejected
question of that kind, so that the client's request id is found on the coordinator too. Answered questions are
only counted: there are many, and the node that asked has a line for each. No secret is in either.

Tested by tests/cluster/test_metrics.py.
"""

import functools
import logging
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from ca.errors import Internal
from ca.tls import Peer
from metadata.protocol.calls import AnyCall, HeartbeatCall, PlaceCall, ProposeCall, ReadCall, StatusCall
from metadata.protocol.commands import RecordProgress
from metadata.rpc import wire
from runtime.logs import REQUEST_ID, log_call

DURATION_BUCKETS_S: Final = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
MALFORMED: Final = "malformed"
# These are frequent and uninteresting.
_QUIET: Final = (ReadCall, PlaceCall, HeartbeatCall, StatusCall, RecordProgress)
_FIXED: Final = {wire.OK: "ok", wire.NOT_LEADER: "not_leader", wire.RETRY: "retry", Internal.code: "failed"}


class ServedCalls:
    """Counts and logs in the registry of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = Counter(
            "filestore_rpc_calls",
            "Calls of members by kind and outcome; `retry` means no majority or no time.",
            ["call", "outcome"],
            registry=registry,
        )
        self._durations = Histogram(
            "filestore_rpc_call_duration_seconds",
            "Time from the arrival of a call to its answer.",
            ["call"],
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )
        # To find a child by its labels takes longer than to count with it.
        self._counts = functools.lru_cache(None)(self._calls.labels)
        self._times = functools.lru_cache(None)(self._durations.labels)

    def count_call(self, peer: Peer, call: AnyCall | None, status: str, duration_s: float) -> None:
        """Count one answered call of `peer`, with its status on the wire; a malformed call is None."""
        kind = MALFORMED if call is None else _tag(call)
        outcome = _FIXED.get(status, "refused")
        self._counts(kind, outcome).inc()
        self._times(kind).observe(duration_s)
        if request_id := REQUEST_ID.get():
            changed = call.command if isinstance(call, ProposeCall) else call
            is_notable = outcome in ("refused", "failed") or not isinstance(changed, _QUIET)
            log_call(
                logging.INFO if is_notable else logging.DEBUG,
                request_id=request_id,
                caller=peer.identity.id,
                call=kind if call is None else subject_of(call),
                status=status,
                duration_s=duration_s,
            )


def subject_of(call: AnyCall) -> str:
    """Return the name of the command or query in the call, or its own."""
    match call:
        case ProposeCall():
            return _tag(call.command)
        case ReadCall():
            return _tag(call.query)
    return _tag(call)


def _tag(message: object) -> str:
    return str(type(message).__struct_config__.tag)  # type: ignore[attr-defined]
