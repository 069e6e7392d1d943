r"""An application of somebody else's that takes remote workers in: the router is mounted, nothing else is ours.

    pip install 'celery-jobs[server]' aiosqlite
    export HOST_SECRET=$(python -c 'import secrets; print(secrets.token_hex())')
    uvicorn --app-dir examples/remote_host main:app --port 8000

    TOKEN=$(python examples/remote_host/main.py alice --admin)
    curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8000/v1/me
    curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8000/v1/joblib/rooms/@global/jobs

DATABASE_URL is sqlite+aiosqlite:///… (a file in the working directory unless set) or postgresql+psycopg://…;
INTERNAL_API_URL, where it is set, is this application's own address, by which its sweeper asks for a sweep.
docs/remote-host.md goes through it step by step.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from celery_jobs.api.joblib import (
    JobLibSettings,
    ProblemException,
    Task,
    get_current_identity,
    get_db_session,
    get_is_admin,
    problem_exception_handler,
    router,
    run_cleanup_sweeper,
)
from celery_jobs.records import create_tables

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///remote_host.db")
INTERNAL_API_URL = os.environ.get("INTERNAL_API_URL")
SECRET = os.environ.get("HOST_SECRET") or secrets.token_hex()

# --- the application's own database: a client that is kept waiting by it gets 503

engine = create_async_engine(DATABASE_URL)
async_session_maker = async_sessionmaker(engine)


async def my_db_session() -> AsyncGenerator[AsyncSession]:
    async with async_session_maker() as session:
        yield session


# --- the application's own users: whoever shows a token that was signed with its secret

bearer = HTTPBearer(auto_error=False)


def make_token(subject: str, is_admin: bool) -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"sub": subject, "is_admin": is_admin}).encode()).decode()
    return f"{payload}.{_signature(payload)}"


def _signature(payload: str) -> str:
    return hmac.new(SECRET.encode(), payload.encode(), hashlib.sha256).hexdigest()


async def my_user(credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> dict[str, Any]:
    payload, _, signature = (credentials.credentials if credentials else "").partition(".")
    if not hmac.compare_digest(signature.encode(), _signature(payload).encode()):
        raise HTTPException(401, "This needs a token", {"WWW-Authenticate": "Bearer"})
    return json.loads(base64.urlsafe_b64decode(payload))


User = Annotated[dict[str, Any], Depends(my_user)]


async def my_get_current_identity(user: User) -> str:
    return str(user["sub"])


async def my_get_is_admin(user: User) -> bool:
    return bool(user["is_admin"])


# --- its life: the tables are made, and workers that fall silent are swept


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
    await create_tables(engine)
    every = JobLibSettings().sweeper_interval_seconds
    if INTERNAL_API_URL:
        sweeping = run_cleanup_sweeper(base_url=INTERNAL_API_URL, interval_seconds=every)
    else:
        sweeping = run_cleanup_sweeper(session_factory=async_session_maker, interval_seconds=every)
    sweeper = asyncio.create_task(sweeping)
    yield
    sweeper.cancel()
    await engine.dispose()


app = FastAPI(title="Somebody else's application", lifespan=lifespan)
app.dependency_overrides[get_db_session] = my_db_session
app.dependency_overrides[get_current_identity] = my_get_current_identity
app.dependency_overrides[get_is_admin] = my_get_is_admin
app.add_exception_handler(ProblemException, problem_exception_handler)
app.include_router(router)


@app.get("/v1/me")
async def get_me(user: User) -> dict[str, str]:
    """What the SDK asks for first."""
    return {"id": user["sub"]}


@app.get("/rooms/{room_id}/summary")
async def get_summary(room_id: str, session: Annotated[AsyncSession, Depends(my_db_session)]) -> dict[str, int]:
    """The application reads what remote workers do as rows of its own database."""
    counted = select(Task.status, func.count()).where(Task.room_id == room_id).group_by(Task.status)
    return dict((await session.execute(counted)).tuples().all())


if __name__ == "__main__":
    print(make_token(sys.argv[1], "--admin" in sys.argv))
