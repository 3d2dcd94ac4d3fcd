"""A service with a public OpenAPI document, which a host serves as a module."""
