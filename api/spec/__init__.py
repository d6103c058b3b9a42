"""The description of the API: operations, their schemas, the OpenAPI document."""
