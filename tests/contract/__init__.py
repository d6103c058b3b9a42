"""Requests made from the OpenAPI document, answers held against it; `make contract` runs the long suite."""
