"""Celery settings of the service, each with its reason; a deployment changes them in its own `celeryconfig.py`."""

from __future__ import annotations

import os
from typing import Any

_broker = os.environ.get("CELERY_BROKER_URL", "")
_redis = _broker.startswith(("redis://", "rediss://", "sentinel://"))
_stored_in_redis = os.environ.get("CELERY_RESULT_BACKEND", "").startswith(("redis://", "rediss://", "sentinel://"))
_amqp = _broker.startswith(("amqp://", "amqps://", "pyamqp://"))

# our own queue, so that neither side's workers drop the other's tasks
task_default_queue = os.environ.get("JOBS_DEFAULT_QUEUE") or "jobs"

# arguments and results are JSON; nothing is ever unpickled
task_serializer = "json"
result_serializer = "json"
event_serializer = "json"
accept_content = ["json"]

# Flower and the mirror follow events; the record already knows what was sent, and publishing is twice as fast without
worker_send_task_events = True
task_send_sent_event = False
task_track_started = True

# Redis: late ack with a visibility timeout runs one job several times at once, so messages are acked early and fetched
# only for a free slot. RabbitMQ: early ack with prefetch 1 starts a job seconds late beside an idle worker.
# In both the record's claim drops what is delivered twice and the sweeper finds what is lost.
task_acks_late = _amqp or not _broker  # the embedded broker would hold a second message for each slot
worker_prefetch_multiplier = 1
worker_disable_prefetch = _redis
worker_enable_prefetch_count_reduction = False
worker_cancel_long_running_tasks_on_connection_loss = False

# workers come back by themselves, however long the broker is away and whatever it answers meanwhile (a full Redis, a
# failover that made it a replica); tasks/consumer.py says how soon
worker_consumer = "celery_jobs.tasks.consumer:JobsConsumer"
broker_connection_retry_on_startup = True
broker_connection_max_retries: int | None = None
broker_channel_error_retry = True
broker_connection_timeout = 3.0

# A broker that is silent must not hold a thread for ever, and one that is away is not waited for: who publishes has its
# own way of trying again. A visibility timeout far above any job's length.
broker_transport_options: dict[str, Any] = (
    {
        "socket_timeout": 5.0,
        "socket_connect_timeout": 3.0,
        "socket_keepalive": True,
        "max_retries": 0,
        "visibility_timeout": 7 * 86400,
    }
    if _redis
    else {}
)

# The record has the result; Celery's own copy is for others, and a result backend that is away must not hold a slot
redis_socket_timeout = 5.0
redis_socket_connect_timeout = 3.0
result_backend_transport_options: dict[str, Any] = (
    {"retry_policy": {"max_retries": 1, "interval_start": 0, "interval_step": 0.2, "interval_max": 0.2}}
    if _stored_in_redis
    else {}
)

# one task's failure must not leave its worker's logs in another format
worker_hijack_root_logger = False
worker_redirect_stdouts = False
