"""The proof: a fleet under load, while everything that it stands on is killed, frozen and cut. See README.md."""
