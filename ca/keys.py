"""Private keys and the cluster key. Shared by certificates, tokens and TLS, which do not know each other.

Also the text form and digest of keys; replicated secrets are wrapped under the cluster key.

No I/O here: files are `ca.secretfiles`' work. Nothing here puts key material into an error or a repr.
"""

import hashlib
import secrets
from typing import Final

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ca.errors import Internal

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

CLUSTER_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12  # NIST SP 800-38D, 8.2.2: random, good for 2**32 wraps under one key
_TAG_BYTES: Final = 16
_VERSION: Final = b"\x01"


class UnreadableKey(Internal):
    """A private key that this product keeps cannot be read, or is not the kind it makes."""


class WrongClusterKey(Internal):
    """A replicated secret does not open: another cluster's key, another purpose, or damaged bytes."""


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key. (Chromium refuses Ed25519 certificates, so everything here is P-256.)"""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return PKCS #8 PEM without a passphrase. Store it with `ca.secretfiles.write_secret` or `wrap`."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def key_from_pem(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """The P-256 key in a PEM text, which may hold certificates behind it. Raises UnreadableKey."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UnreadableKey("the private key is encrypted, damaged or not in PEM format") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UnreadableKey("the private key is not on the curve P-256")
    return key


def public_key_digest(public_key: PublicKey) -> str:
    """Return the SHA-256 (hex) of the DER SubjectPublicKeyInfo: the same for every certificate of a key."""
    der = public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def new_cluster_key() -> bytes:
    """32 random bytes. Every coordinator reads the same ones from a 0600 file or a systemd credential."""
    return secrets.token_bytes(CLUSTER_KEY_BYTES)


def wrap(cluster_key: bytes, plaintext: bytes, *, purpose: str) -> bytes:
    """`plaintext` sealed with AES-256-GCM: version byte, 12-byte nonce, ciphertext with tag.

    `purpose` is authenticated with it, so one wrapped secret cannot be passed off as another.
    """
    assert len(cluster_key) == CLUSTER_KEY_BYTES, "cluster key length not checked"
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return _VERSION + nonce + AESGCM(cluster_key).encrypt(nonce, plaintext, _associated_data(purpose))


def unwrap(cluster_key: bytes, wrapped: bytes, *, purpose: str) -> bytes:
    """Decrypt the result of `wrap`. Raises WrongClusterKey, naming the purpose and nothing else."""
    if len(cluster_key) != CLUSTER_KEY_BYTES:
        raise WrongClusterKey(f"the cluster key has {len(cluster_key)} bytes, not {CLUSTER_KEY_BYTES}")
    if len(wrapped) < len(_VERSION) + _NONCE_BYTES + _TAG_BYTES or wrapped[:1] != _VERSION:
        raise WrongClusterKey(f"this version does not know the format of the stored {purpose}")
    nonce, sealed = wrapped[1 : 1 + _NONCE_BYTES], wrapped[1 + _NONCE_BYTES :]
    try:
        return AESGCM(cluster_key).decrypt(nonce, sealed, _associated_data(purpose))
    except InvalidTag as error:
        raise WrongClusterKey(
            f"this cluster key does not decrypt the stored {purpose}: is it the key file of this cluster?"
        ) from error


def derived_key(cluster_key: bytes, purpose: str) -> bytes:
    """Return a key for `wrap` that is made of the cluster key, to seal more with than keys."""
    kdf = HKDF(algorithm=hashes.SHA256(), length=CLUSTER_KEY_BYTES, salt=None, info=purpose.encode())
    return kdf.derive(cluster_key)


def _associated_data(purpose: str) -> bytes:
    return b"filestore wrap " + _VERSION + purpose.encode()
