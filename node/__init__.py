"""What users touch: blob replicas, uploads, downloads, the HTTP interface."""
