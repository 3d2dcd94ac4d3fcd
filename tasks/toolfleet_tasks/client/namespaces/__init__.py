"""The namespaces of a fleet, `fleet.jobs` and others: each has its asynchronous and its synchronous class."""
