"""The changes between two versions of a project: files, texts and the topology."""
