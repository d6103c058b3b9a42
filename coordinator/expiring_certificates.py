"""Which certificates of the cluster end soon, as one coordinator knows it."""

from collections.abc import Mapping
from typing import Final

from ca.certificates import UntrustedCertificate
from ca.tls import Credential
from coordinator.member_metrics import expiries
from coordinator.protocol.calls import FOR_BROWSERS, INTERMEDIATE, ROOT, CertificateEnd
from coordinator.storage.state_store import Store

# A leaf lives for 7 days and is renewed after two thirds of them, 56 hours before its end: this is most of a
# day without a renewal.
LEAF_WARNING_MS: Final = 36 * 3_600_000
AUTHORITY_WARNING_MS: Final = 30 * 86_400_000
# ACME clients renew one of 90 days with 30 left, one of 45 with 15: this is days without a renewal.
WEB_WARNING_MS: Final = 10 * 86_400_000


def own_end_ms(credential: Credential) -> int:
    """When the certificate of this coordinator ends, by its file; 0 while that cannot be read."""
    try:
        return expiries(credential).leaf_ms
    except (OSError, UntrustedCertificate):
        return 0


def ending_soon(
    store: Store, credential: Credential, own_id: str, *, at_ms: int, web_ends_ms: Mapping[str, int]
) -> list[CertificateEnd]:
    """Those of nodes, the newest that each was given; of this coordinator and the authority, by its file.

    `web_ends_ms`: when those for browsers end, by the member, such as `node n1`; 0 where it has none.
    """
    found = [
        CertificateEnd(f"node {node_id}", expires_at_ms)
        for node_id, expires_at_ms in store.node_certificates_ending(before_ms=at_ms + LEAF_WARNING_MS)
    ]
    found += [
        CertificateEnd(member + FOR_BROWSERS, ends_ms)
        for member, ends_ms in web_ends_ms.items()
        if 0 < ends_ms < at_ms + WEB_WARNING_MS
    ]
    try:
        own = expiries(credential)
    except (OSError, UntrustedCertificate):
        return found
    if own.leaf_ms < at_ms + LEAF_WARNING_MS:
        found.append(CertificateEnd(f"coordinator {own_id}", own.leaf_ms))
    for holder, expires_at_ms in ((INTERMEDIATE, own.intermediate_ms), (ROOT, own.root_ms)):
        if expires_at_ms < at_ms + AUTHORITY_WARNING_MS:
            found.append(CertificateEnd(holder, expires_at_ms))
    return found
