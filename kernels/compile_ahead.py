"""Triton kernels compiled before their first launch, several at a time.

A compiler works without the interpreter's lock, so threads share the cores; kernels that are
compiled at their first launch come one after the other instead.
"""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import triton

_MOST_THREADS = 32


@dataclass
class Compilation:
    """What was compiled, filled in at the end."""

    kernels: int = 0  # found in the cache or compiled
    compiled: int = 0
    compiler_seconds: float = 0.0  # of all compiled kernels, as if one after the other
    seconds: float = 0.0  # that it took
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def heard(self, *, times: Any, cache_hit: bool, **_: Any) -> None:
        """Triton's CompilationListener; called on the compiling thread."""
        with self._lock:
            self.kernels += 1
            if not cache_hit:
                self.compiled += 1
                self.compiler_seconds += times.total / 1e6


@contextmanager
def compile_ahead() -> Iterator[Compilation]:
    """Launches inside compute nothing, of kernels compiled before either, which would run on the
    garbage that others left unwritten. Each that a launch would compile is noted, and on leaving
    all are compiled. The first failure is raised.
    """
    wanted: dict[Any, tuple[Any, str]] = {}

    def note(*, key: Any, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        wanted[fn.jit_function, key] = fn.jit_function, compile["specialization_data"]
        return True  # Triton then launches nothing

    compilation = Compilation()
    runtime, compiling = triton.knobs.runtime, triton.knobs.compilation
    hook_before, listener_before = runtime.jit_cache_hook, compiling.listener
    launch = triton.JITFunction.run

    def only_compile(kernel: Any, *arguments: Any, **keywords: Any) -> Any:
        return launch(kernel, *arguments, **(keywords | {"warmup": True}))

    runtime.jit_cache_hook = note
    triton.JITFunction.run = only_compile
    try:
        yield compilation
    finally:
        triton.JITFunction.run = launch
        runtime.jit_cache_hook = hook_before
    start = time.monotonic()
    compiling.listener = compilation.heard
    try:
        with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "compile") as threads:
            for _ in threads.map(_compile, wanted.values()):
                pass
    finally:
        compiling.listener = listener_before
    compilation.seconds = time.monotonic() - start


def _compile(wanted: tuple[Any, str]) -> None:
    """With what the host needs to launch it, which Triton leaves until then and compiles too."""
    kernel, specialization = wanted
    _ = kernel.preload(specialization).run
