"""Header fields that go with requests to modules: which may be set, and how their values stay unseen."""
