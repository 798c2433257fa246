"""Builds what calls the C++ templates with run-time sizes: each driver once for all processes that
tests are spread over, and for the next run."""

import ctypes
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

from stretto.options import Options
from stretto.runtime.cache import DiskCache, content_key
from stretto.runtime.compiler import cpu, find_compiler, header_text

INCLUDE = Path(__file__).parents[3] / "src/stretto/machines/cpu/include"
COMPILER = shutil.which("g++")
X86 = platform.machine() in ("x86_64", "AMD64")


@cache
def driver(source: str, *flags: str) -> ctypes.CDLL:
    """The shared object of a source that may include the templates' headers, without warnings."""
    words = ("-std=c++17", *flags, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    key = content_key(source, header_text(INCLUDE), *words, find_compiler().version, cpu())

    def build(product: Path) -> None:
        text = product.with_name("driver.cpp")
        text.write_text(source)
        command = [COMPILER, *words, "-iquote", INCLUDE, text, "-o", product]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    path, _ = DiskCache(Options().cache_path()).get_or_put(key, ".so", build)
    return ctypes.CDLL(str(path))
