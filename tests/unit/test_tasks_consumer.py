"""The worker's connection to the broker, where an outage over real servers seldom meets the moment."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from kombu.connection import Connection

from celery_jobs.tasks.celery import app
from celery_jobs.tasks.consumer import JobsConsumer


class Collected(Connection):
    """Lost its transport while its channel still held messages: kombu's Redis channel then trips over None."""

    def close(self) -> None:
        raise AttributeError("'NoneType' object has no attribute 'hostname'")


def test_a_broken_connection_that_cannot_be_closed_ends_no_worker(caplog: pytest.LogCaptureFixture):
    consumer: Any = JobsConsumer.__new__(JobsConsumer)
    consumer.app, consumer.connection = app, Collected("memory://")
    with caplog.at_level(logging.WARNING, "celery_jobs.consumer"):
        consumer.on_connection_error_after_connected(ConnectionResetError())
    assert consumer.connection is None
    assert "could not be closed" in caplog.text
