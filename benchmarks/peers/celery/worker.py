"""Stock Celery: acks late, JSON, task events on; a result backend that threads and greenlets share."""

from typing import Any

from benchmarks.posting import BlockingPoster
from benchmarks.work import REDIS_URL
from celery import Celery

app = Celery("bench", broker=REDIS_URL, backend=REDIS_URL)
app.conf.update(
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],
    task_acks_late=True,
    task_default_queue="tools",
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    # Else every greenlet has a backend of its own, with connections of its own, made anew for each task.
    result_backend_thread_safe=True,
    # redis-py allows 100 connections and kombu 10: not enough for 200 threads that wait, or 100 greenlets that ack.
    redis_max_connections=1000,
    broker_transport_options={"max_connections": 1000},
)
post = BlockingPoster()


@app.task(name="bench.execute")
def execute(tool_name: str, arguments: dict[str, Any], user_id: str) -> Any:
    """Run one call."""
    return post(tool_name, arguments, user_id)
