"""Identity: keys, certificates, join tokens, user tokens, TLS contexts and the root of all errors."""
