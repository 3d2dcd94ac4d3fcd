"""For module authors: functions become tools, and a module an ASGI app. `toolfleet.sdk` is its public face."""
