"""Problem documents (RFC 9457)."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    loc: list[str | int] = Field(description="Where: body, query, path or header, then the way to the value.")
    msg: str
    type: str


class Problem(BaseModel):
    """Why a request was not answered as asked."""

    type: str = Field(examples=["urn:servicekit:error:not-found"])
    title: str = Field(examples=["Resource Not Found"])
    status: int = Field(examples=[404])
    detail: str
    instance: str = Field(description="The path of the request.")
    errors: list[Fault] | None = Field(default=None, description="Each fault of the request; with 422 only.")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these errors; 422 and 503 are always among them."""
    reference = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {
        status: {"description": "Problem", "content": {"application/problem+json": reference}}
        for status in sorted({*statuses, 422, 503})
    }
