"""The cold form of replicas: chunks that replicas share, in packs, and manifests that name them."""
