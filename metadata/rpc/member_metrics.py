"""The metrics of every member: when its certificates expire, age of its view, offset of its clock.

Tested by tests/cluster/test_metrics.py.
"""

import math
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from ca.certificates import UntrustedCertificate, certificates_in, validity_ms
from ca.tls import Credential
from ca.webcertificate import WebCertificate
from metadata.rpc.view import View

LEAF: Final = "leaf"
INTERMEDIATE: Final = "intermediate"
ROOT: Final = "root"
WEB: Final = "web"


@dataclass(frozen=True, slots=True)
class Expiries:
    """When each kind of certificate of one member ends, in ms since 1970; of several roots, the first."""

    leaf_ms: int
    intermediate_ms: int
    root_ms: int


def expiries(credential: Credential) -> Expiries:
    """Return the expiry times of the credential on disk. Raises OSError, UntrustedCertificate."""
    leaf, *authorities = credential.chain()
    if not authorities:
        raise UntrustedCertificate("the credential has no intermediate certificate")
    roots = certificates_in(credential.root_pem)
    return Expiries(
        leaf_ms=validity_ms(leaf)[1],
        intermediate_ms=min(validity_ms(each)[1] for each in authorities),
        root_ms=min(validity_ms(each)[1] for each in roots),
    )


class MemberMetrics:
    """Gauges in the registry of one process, read at every scrape."""

    def __init__(
        self,
        registry: CollectorRegistry,
        credential: Credential,
        view: View,
        web: WebCertificate | None = None,
    ) -> None:
        """`web`: the certificate for browsers, if there is one; what counts is the one in use."""
        self._credential = credential
        self._seen: tuple[int, Expiries] | None = None
        expiry = Gauge(
            "filestore_certificate_expiry_timestamp_seconds",
            "When a certificate of this process expires: leaf, intermediate, root, or web for browsers.",
            ["certificate"],
            registry=registry,
        )
        expiry.labels(LEAF).set_function(lambda: self._expiry_s(LEAF))
        expiry.labels(INTERMEDIATE).set_function(lambda: self._expiry_s(INTERMEDIATE))
        expiry.labels(ROOT).set_function(lambda: self._expiry_s(ROOT))
        if web is not None:
            expiry.labels(WEB).set_function(lambda: web.not_after_ms / 1000)
        Gauge(
            "filestore_view_age_seconds",
            (
                "Time since a coordinator last confirmed this process's view of the cluster; beyond 5 s "
                "requests are refused."
            ),
            registry=registry,
        ).set_function(view.age_s)
        Gauge(
            "filestore_clock_offset_seconds",
            (
                "Offset of this clock from the leader's clock, including the time of one answer; NaN if "
                "unknown."
            ),
            registry=registry,
        ).set_function(view.clock_offset_s)

    def _expiry_s(self, kind: str) -> float:
        try:
            changed_at_ns = self._credential.path.stat().st_mtime_ns
            if self._seen is None or self._seen[0] != changed_at_ns:
                self._seen = changed_at_ns, expiries(self._credential)
        except (OSError, UntrustedCertificate):
            return math.nan  # the process continues with the credential in memory: this is no reason to fail
        found = self._seen[1]
        by_kind = {LEAF: found.leaf_ms, INTERMEDIATE: found.intermediate_ms, ROOT: found.root_ms}
        return by_kind[kind] / 1000
