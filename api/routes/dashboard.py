"""The page at `/`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

router = APIRouter()

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Jobs</title>
<h1>Jobs</h1><p>The service is running. <a href="docs">API documentation</a></p>
"""


@router.get("/", include_in_schema=False)
async def page() -> HTMLResponse:
    """A page without data, open to all."""
    return HTMLResponse(_PAGE)
