"""Where the system's Chromium is, for the browser tests and the summary line that misses it."""

from __future__ import annotations

import os
import shutil

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
"""The one without windows first: in it the browser tests take 40 % of the CPU."""


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
    raise NoChromium("no Chromium is installed (`apt-get install chromium-headless-shell`, or set GPUPLANE_CHROMIUM)")
