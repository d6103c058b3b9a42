"""Trust only the root certificate of the cluster. Shared by transport and retries.

Nothing else on this machine is trusted.
"""

import ssl

from filestore_client.base.errors import InvalidRequest

_NOT_YET_VALID, _HAS_EXPIRED = 9, 10  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED


def root_context(root_pem: str) -> ssl.SSLContext:
    """A context that verifies servers against these roots (PEM). Raises InvalidRequest for other text."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.hostname_checks_common_name = False
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(cadata=root_pem)
    except (ssl.SSLError, ValueError) as error:  # ValueError: empty, or not ASCII
        raise InvalidRequest("The root certificates are not in PEM format.") from error
    return context


def distrust(error: Exception) -> str:
    """Explain what is wrong with a server's certificate: text that follows "the certificate"."""
    code = error.verify_code if isinstance(error, ssl.SSLCertVerificationError) else 0
    if code == _NOT_YET_VALID:
        return "is not valid yet (is the clock here behind, or the cluster's clock ahead?)"
    if code == _HAS_EXPIRED:
        return "has expired (is the clock here ahead?)"
    return "was not issued by this cluster, or not for this address"
