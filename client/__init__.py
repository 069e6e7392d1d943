"""The SDK for remote workers and scripts; needs httpx and Pydantic only (contract, section 8).

from celery_jobs.client import JobManager

jobs = JobManager("http://127.0.0.1:8000")

@jobs.register
class Rotate(BaseModel):
    angle: float = 0.0

    def run(self) -> float:
        return self.angle % 360

jobs.serve()
"""

from celery_jobs.client.api import ApiManager, HttpApi
from celery_jobs.client.errors import (
    ClientError,
    Conflict,
    Forbidden,
    Internal,
    InvalidCategory,
    InvalidRoomId,
    InvalidTaskTransition,
    JobNotFound,
    MethodNotAllowed,
    NotFound,
    PayloadInvalid,
    Problem,
    ResultNotJson,
    SchemaConflict,
    TaskNotFound,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
    ValidationFailed,
    WorkerNotFound,
)
from celery_jobs.client.jobs import JobManager
from celery_jobs.client.offered import register
from celery_jobs.client.stream import TaskStream
from celery_jobs.client.submitted import SubmittedTask
from celery_jobs.client.task import ClaimedTask, RemoteTask

__all__ = [
    "ApiManager",
    "ClaimedTask",
    "ClientError",
    "Conflict",
    "Forbidden",
    "HttpApi",
    "Internal",
    "InvalidCategory",
    "InvalidRoomId",
    "InvalidTaskTransition",
    "JobManager",
    "JobNotFound",
    "MethodNotAllowed",
    "NotFound",
    "PayloadInvalid",
    "Problem",
    "RemoteTask",
    "ResultNotJson",
    "SchemaConflict",
    "SubmittedTask",
    "TaskNotFound",
    "TaskStream",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "Unreachable",
    "ValidationFailed",
    "WorkerNotFound",
    "register",
]
