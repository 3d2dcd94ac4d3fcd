"""rq's worker. One job at a time is all it does; the one that does not fork for each is twenty times as fast."""

from benchmarks.peers.rq import tasks  # noqa: F401 - imported before the first job
from benchmarks.work import REDIS_URL
from redis import Redis
from rq import Queue, SimpleWorker

if __name__ == "__main__":
    redis = Redis.from_url(REDIS_URL, socket_timeout=None)
    SimpleWorker([Queue("tools", connection=redis)], connection=redis).work(logging_level="WARNING")
