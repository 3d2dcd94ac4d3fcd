"""Serves the operations of an OpenAPI document as a module's tools."""
