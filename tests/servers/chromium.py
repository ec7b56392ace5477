"""Where the system's Chromium is, for the browser tests and the summary line that misses it."""

from __future__ import annotations

import os
import shutil

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


class NoChromium(Exception):
    """This machine has none; the text says what to install."""


def executable() -> str:
    """Path of the browser. Raises NoChromium."""
    given = os.environ.get("GPUPLANE_CHROMIUM")
    if given:
        return given
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise NoChromium("no Chromium is installed (`apt-get install chromium`, or set GPUPLANE_CHROMIUM)")
