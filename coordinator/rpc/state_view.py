"""The view of the cluster that this coordinator has applied. Shared by server, service and statuses.

It is only created again when it has changed.

Tested by tests/unit/coordinator/test_admission.py.
"""

import msgspec

from coordinator.rpc.server import value_of
from coordinator.storage.state_store import Store
from metadata.model.records import ClusterView
from metadata.protocol.queries import GetView
from runtime.clock import now_ms


class StateView:
    """The view of the cluster, as GetView returns it: every change and read uses it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: ClusterView | None = None

    def __call__(self) -> ClusterView:
        """Return the view as of the applied index, which is not linearizable."""
        if self._seen is None or self._seen.version != self._store.view_version():
            reply = self._store.answer(GetView(), at_ms=now_ms())
            self._seen = msgspec.msgpack.decode(value_of(reply), type=ClusterView)
        return self._seen
