"""How a call travels: queues, retry, results, and the client that an agent imports."""
