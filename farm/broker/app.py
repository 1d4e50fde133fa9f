"""The Celery application that agents run. JSON only, no result backend, no events, no remote control."""

from __future__ import annotations

from celery import Celery

from farm.settings import Settings


def transport_options(broker_url: str) -> dict[str, float]:
    """`connect_timeout` bounds a hung broker; the polling interval is the embedded broker's latency."""
    if broker_url.startswith("memory:"):
        return {"polling_interval": 0.04}
    return {"connect_timeout": 5.0}


def make_app(settings: Settings) -> Celery:
    """A Celery application with settings for `settings.broker_url`; declares no queue of its own."""
    app = Celery("ridgeline", broker=settings.broker_url, set_as_current=False)
    app.conf.update(
        accept_content=["json"],
        task_serializer="json",
        result_backend=None,
        task_ignore_result=True,
        task_acks_late=False,
        task_create_missing_queues=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_prefetch_multiplier=16,
        # It talks to the connection from pool threads, which breaks it (docs/decisions/0003).
        worker_enable_prefetch_count_reduction=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_heartbeat=10,
        broker_connection_timeout=5.0,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options=transport_options(settings.broker_url),
    )
    return app
