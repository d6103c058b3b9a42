"""How the interface is described: operations, their schemas, the OpenAPI document."""
