"""The data folder: the signing key, SQLite, credentials, a worker's canary."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpuplane.errors import BadSetting


def be_writable(folder: Path) -> None:
    """Make the folder where it is missing, and write to it. Raises BadSetting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BadSetting(f"GPUPLANE_DATA_DIR={folder} cannot be written to: {error.strerror or error}") from error
