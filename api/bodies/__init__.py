"""The bodies of the metadata API, as msgspec Structs in the field order of the interface, and their checks.

The OpenAPI document is made from them. An answer has every field, "" for text without a value. A request's
optional fields may be absent, null or "". One module per resource; `fields` describes how fields are
described.
"""
