"""The data folder's lock: one embedded service a folder."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from celery_jobs.records.errors import SettingsError


class FolderLock:
    """Held for the life of the embedded service; the file says who holds it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[str] | None = None

    def acquire(self, wait_seconds: float) -> None:
        """Take it, waiting for a service that is just ending; SettingsError says who holds it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise SettingsError(
                f"The data folder {self._folder} cannot be written ({error.strerror}); set JOBS_DATA_DIR or --data-dir "
                "to a folder that this user may write"
            ) from None
        deadline = time.monotonic() + wait_seconds
        while not self._locked():
            if time.monotonic() >= deadline:
                holder = self._holder()
                self.release()
                raise SettingsError(
                    f"The data folder {self._folder} is in use by process {holder}; stop that service, or give this "
                    "one its own folder with JOBS_DATA_DIR or --data-dir"
                )
            time.sleep(0.05)
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        """Let the next one start."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _locked(self) -> bool:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _holder(self) -> str:
        assert self._file is not None
        self._file.seek(0)
        return self._file.read().strip() or "unknown"
