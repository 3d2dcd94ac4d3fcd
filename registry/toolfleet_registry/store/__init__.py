"""Stores what a registry knows (tools, documents, manifests): in this process, in Redis, or in an SQL database."""
