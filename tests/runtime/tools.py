"""llama-cpp-python, built once from its source package, in an environment of its own beside the cluster's programs.

Called by `make runtime-tools` (`python -m tests.runtime.tools`) and by the tests. The environment has the packages of
requirements/runtime.txt, by their hashes; it appears whole or not at all, in a folder named after that file.
"""

import hashlib
import os
import shutil
import sys
import time
from pathlib import Path

from tests.cluster.controlplane.tools import ToolsError, one_at_a_time, run, tools_folder

PACKAGES = Path(__file__).resolve().parents[2] / "requirements" / "runtime.txt"
SOURCE = "llama-cpp-python"
OFF = ("GGML_NATIVE", "LLAVA_BUILD", *(f"LLAMA_BUILD_{part}" for part in ("TOOLS", "EXAMPLES", "TESTS", "SERVER")))
# What the build leaves out: instructions of this very processor, and programs that nobody runs here.


def place() -> Path:
    """Where the environment is, or will be."""
    digest = hashlib.sha256(PACKAGES.read_bytes()).hexdigest()[:12]
    return tools_folder() / f"{SOURCE}-{sys.version_info.major}.{sys.version_info.minor}-{digest}"


def python() -> str:
    """The Python that has the packages. ToolsError where it is not built."""
    path = place() / "bin" / "python"
    if not path.exists():
        raise ToolsError("llama-cpp-python is not here: run `make runtime-tools`")
    return str(path)


def build_missing() -> bool:
    """Build it where it is not there; whether it was built now. ToolsError where that fails."""
    if place().exists():
        return False
    missing = [name for name in ("cmake", "c++") if shutil.which(name) is None]
    if missing:
        raise ToolsError(f"llama-cpp-python is built from source, and there is no {' and no '.join(missing)} here")
    print(f"building {SOURCE} into {place()}: about six minutes on two cores, once", flush=True)
    with one_at_a_time():
        if not place().exists():
            _build()
    return True


def _build() -> None:
    began = time.monotonic()
    beside = place().with_suffix(".part")
    shutil.rmtree(beside, ignore_errors=True)
    environment = {**os.environ, "CMAKE_ARGS": " ".join(f"-D{name}=OFF" for name in OFF)}
    environment.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
    run([sys.executable, "-m", "venv", str(beside)], environment)
    options = ("--quiet", "--disable-pip-version-check", "--require-hashes", "--no-binary", SOURCE)
    pip = [str(beside / "bin" / "python"), "-m", "pip", "install", *options, "--requirement", str(PACKAGES)]
    run(["nice", *pip], environment)
    beside.replace(place())
    print(f"  {SOURCE}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> int:
    """`make runtime-tools`: build it if need be, and say where it is."""
    try:
        built = build_missing()
    except ToolsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{SOURCE:24} {place()}{'  (built now)' if built else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
