"""Job ids: 128 bits, spelled as a ULID in answers and as a ULID or a UUID in requests (contract, section 1)."""

from __future__ import annotations

import os
import re
import time
import uuid
from typing import NewType

from ulid import ULID

from celery_jobs.records.errors import InvalidJobId
from celery_jobs.records.text import clean

JobId = NewType("JobId", str)

# Crockford base 32 without I, L, O, U; the first character holds 3 bits, so more than 128 bits never match
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")

# namespace of the UUIDv5 under which a task id that is neither ULID nor UUID is recorded
_FOREIGN_IDS = uuid.UUID("5c2d8a4e-7d0b-5f0e-9c53-0a6f3f1d7b11")


def new_job_id() -> JobId:
    """A fresh job id; ids made later sort later, to the millisecond."""
    # not by ULID(): its generator has a lock, which a child that is forked at the wrong moment never gets
    return JobId(str(ULID((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10))))


def parse_job_id(text: str) -> JobId:
    """The job id that `text` spells as ULID (any case) or UUID; raises InvalidJobId."""
    upper = text.upper()
    if _ULID.fullmatch(upper) and text.isascii():
        return JobId(upper)
    if _UUID.fullmatch(text):
        return JobId(str(ULID.from_uuid(uuid.UUID(text))))
    raise InvalidJobId(text)


def job_id_of(celery_id: str) -> JobId:
    """The job id of any Celery task id: the same bits where it is a ULID or UUID, its UUIDv5 otherwise."""
    try:
        return parse_job_id(celery_id)
    except InvalidJobId:
        return JobId(str(ULID.from_uuid(uuid.uuid5(_FOREIGN_IDS, clean(celery_id)))))


# python-ulid's alphabet in that of int(…, 32)
_DIGITS = str.maketrans("0123456789ABCDEFGHJKMNPQRSTVWXYZ", "0123456789ABCDEFGHIJKLMNOPQRSTUV")


def ulid_of(job_id: str) -> ULID:
    """The ULID of an id in its canonical spelling; five times as fast as ULID.from_str, which lists feel."""
    return ULID(_bits(job_id).to_bytes(16, "big"))


def uuid_of(job_id: JobId) -> uuid.UUID:
    """The same 128 bits as a UUID."""
    return uuid.UUID(int=_bits(job_id))


def _bits(job_id: str) -> int:
    return int(job_id.translate(_DIGITS), 32)
