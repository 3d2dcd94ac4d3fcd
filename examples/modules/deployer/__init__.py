"""The module `deployer`: puts projects from workspaces on loopback ports."""
