"""Groups a fleet's methods in namespaces, `fleet.jobs` and others: each has its asynchronous and its synchronous class."""
