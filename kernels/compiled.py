"""Kernels of the CPU face that numba compiles, and their launch on the threads of torch.

A step of a small model is hundreds of operations of a few microseconds, which as calls of torch
cost more than the work in them. A kernel is one compiled function over raw addresses: it takes an
int64 array of ARGUMENTS and does the items that it `take`s, as every other thread does, until none
is left. Threads are those of torch's own OpenMP runtime, since two pools on the same cores wait for
each other.

Compiled code is kept in a folder named after the sources, because numba looks at the one file that
a kernel is in only, and for the machine's processor.
"""

# ruff: noqa: ARG001 - numba wants these parameters.

import ctypes
import fcntl
import hashlib
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any, Protocol

import llvmlite.binding
import numpy as np
import torch
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils, codegen, config
from numba.extending import intrinsic

log = logging.getLogger(__name__)

ARGUMENTS = 18
# Below so many numbers read, to wake a thread takes longer than to do its share.
_SHARED_WORK = 1 << 14
_FIRST = 1  # item 0 of the array counts the items that are taken
_SLOTS = _FIRST + ARGUMENTS

_PATIENCE_SECONDS = 60.0  # many times what the largest kernel takes

_SIGNATURE = types.void(types.CPointer(types.int64))


def _cache_folder() -> Path | None:
    """Where compiled code is kept; None where nothing can be written."""
    sources = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        sources.update(file.read_bytes())
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(base) if base else Path.home() / ".cache"
        folder = folder / "nanoserve" / f"kernels-{sources.hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home
        return None
    return folder if os.access(folder, os.W_OK) else None


def _processor() -> str:
    """The features of this processor, with vectors as wide as it has: compilers for those with
    AVX-512 would take half of it, which suits code that uses them seldom."""
    features = codegen.get_host_cpu_features()
    return f"{features},-prefer-256-bit" if "+avx512f" in features else features


def _bind_threads() -> bool:
    """Lets compiled code start the threads of the OpenMP runtime that torch has loaded; False where
    there is none, and then a kernel has one."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        start = ctypes.cast(library.GOMP_parallel, ctypes.c_void_p).value
        number = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p).value
    except (OSError, AttributeError):
        start = number = 0
    llvmlite.binding.add_symbol("nanoserve_parallel", start or ctypes.addressof(_NOTHING))
    llvmlite.binding.add_symbol("nanoserve_thread", number or ctypes.addressof(_NOTHING))
    return bool(start)


_NOTHING = ctypes.c_int64()  # a name must lead somewhere; nobody goes there
_HAS_THREADS = _bind_threads()
_FOLDER = _cache_folder()
if _FOLDER is not None:
    config.CACHE_DIR = str(_FOLDER)
if config.CPU_FEATURES is None:
    config.CPU_FEATURES = _processor()

_parallel = types.ExternalFunction(
    "nanoserve_parallel", types.void(types.int64, types.int64, types.uint32, types.uint32)
)
_thread = types.ExternalFunction("nanoserve_thread", types.int32())


def has(*features: str) -> bool:
    """Whether kernels may use all of these features of processors, in LLVM's names."""
    known = config.CPU_FEATURES.split(",")
    return all(f"+{name}" in known for name in features)


# Without checks for a division by zero, which keep loops from being vectorized.
inner = njit(error_model="numpy")
# The same, whose products and sums become fused; whether they do depends on the code alone.
fused = njit(error_model="numpy", fastmath={"contract"})


def inner_of(kernel: str) -> Callable[[Any], Any]:
    """As `inner`, for functions that are made anew for each of several kernels: they bear its name.
    Else a process that loads two, kept by different ones, may take one's for the other's."""

    def compiled(function: Any) -> Any:
        function.__qualname__ = f"{kernel}.{function.__qualname__}"
        return inner(function)

    return compiled


def _kept(function: Any, compile: Callable[[bool], Any]) -> Any:
    """What `compile(cache)` makes of the function, with the cache if it serves: a full disk, or a
    file that a crash of the machine cut off, costs time at each start and stops nobody."""
    if _FOLDER is None:
        return compile(False)
    with _one_at_a_time(f"{function.__module__}.{function.__qualname__}"):
        try:
            return compile(True)
        except Exception as error:
            log.warning(
                "compiled kernels are not kept (%r): make room, or if there is some, remove %s",
                error,
                _FOLDER,
            )
            return compile(False)


@contextmanager
def _one_at_a_time(name: str) -> Generator[None, None, None]:
    """Of all processes: the others wait and find what the first has kept. Not where there are no
    locks, nor for one that stands still."""
    assert _FOLDER is not None
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context((_FOLDER / f"{name}.lock").open("w"))
            until = time.monotonic() + _PATIENCE_SECONDS
            while not _locked(file) and time.monotonic() < until:
                time.sleep(0.01)
        yield


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Kernel:
    """A function over addresses. It is compiled at its first launch: a process needs some of the
    kernels only, of one dtype and processor."""

    def __init__(self, function: Any) -> None:
        self._function = function

    @cached_property
    def address(self) -> int:
        return self._compiled.address

    @cached_property
    def _compiled(self) -> Any:  # which lives as long as its address
        return _kept(
            self._function,
            lambda cache: cfunc(_SIGNATURE, error_model="numpy", cache=cache)(self._function),
        )


kernel = Kernel


@intrinsic
def take(typing_context: Any, arguments: Any) -> Any:
    """The number of the next item that no thread has taken, of a kernel's arguments."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw("add", args[0], one, "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


@inner
def thread() -> int:
    """The number of this thread among those that share a kernel's items, from 0 on."""
    return _thread() if _HAS_THREADS else 0


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def call(typing_context: Any, function: Any, argument: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _launch_kernel(function: int, threads: int, values: tuple[int, ...]) -> int:
    arguments = np.empty(_SLOTS, np.int64)
    arguments[0] = 0
    for i in range(ARGUMENTS):
        arguments[_FIRST + i] = values[i]
    if threads == 1:
        call(function, arguments.ctypes.data)
    else:
        _parallel(function, arguments.ctypes.data, np.uint32(threads), np.uint32(0))
    return arguments[0]


_LAUNCH_SIGNATURE = types.int64(types.int64, types.int64, types.UniTuple(types.int64, ARGUMENTS))
# Without the interpreter's lock: attention over a long context takes a while.
_launch = _kept(
    _launch_kernel,
    lambda cache: njit(_LAUNCH_SIGNATURE, nogil=True, cache=cache)(_launch_kernel),
)


def launch(entry: Kernel, items: int, work: int, *arguments: int) -> None:
    """Runs the kernel `entry` on `arguments`, which it finds from its arguments[1] on, after the
    number of items. `work`, in numbers that are read, decides whether all threads share it."""
    threads = torch.get_num_threads() if _HAS_THREADS and work >= _SHARED_WORK else 1
    values = (items, *arguments)
    values += (0,) * (ARGUMENTS - len(values))
    if (capture := capture_here()) is not None:
        capture.add(entry.address, threads, values)
    _launch(entry.address, threads, values)


class Capture(Protocol):
    """Is told of the launches of a thread, to run them again (kernels/launch_graph.py)."""

    def add(self, function: int, threads: int, values: tuple[int, ...]) -> None: ...

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory that nothing else has."""
        ...

    def hold(self, tensor: torch.Tensor) -> None: ...


_here = threading.local()


def capture_here() -> Capture | None:
    """This thread's."""
    capture: Capture | None = getattr(_here, "capture", None)
    return capture


def set_capture(capture: Capture | None) -> None:
    _here.capture = capture


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor for a kernel to write."""
    if (capture := capture_here()) is not None:
        return capture.take(shape, dtype)
    return torch.empty(shape, dtype=dtype)


def held(tensor: torch.Tensor) -> torch.Tensor:
    """For memory that a kernel uses and that is neither `empty` nor the model's."""
    if (capture := capture_here()) is not None:
        capture.hold(tensor)
    return tensor


LAUNCH = 2 + _SLOTS


def launch_of(function: int, threads: int, values: tuple[int, ...]) -> list[int]:
    """LAUNCH numbers, a line of `run_launches`."""
    return [function, threads, 0, *values]


def _run(launches: np.ndarray) -> None:
    """All of launches [n, LAUNCH] int64, one after the other, without the interpreter between."""
    for i in range(launches.shape[0]):
        launches[i, 2] = 0
        function, threads, arguments = launches[i, 0], launches[i, 1], launches[i, 2:].ctypes.data
        if threads == 1:
            call(function, arguments)
        else:
            _parallel(function, arguments, np.uint32(threads), np.uint32(0))


run_launches = _kept(
    _run, lambda cache: njit(types.void(types.int64[:, ::1]), nogil=True, cache=cache)(_run)
)


def address(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """Where its numbers lie. Raises TypeError unless they lie one after the other and are of this
    dtype: a kernel would read them as what they are not."""
    if tensor.dtype != dtype or not tensor.is_contiguous():
        raise TypeError(
            f"a tensor of {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()} "
            f"must be of {dtype} and contiguous"
        )
    return tensor.data_ptr()


@cache
def float_bits(value: float) -> int:
    """An argument that a kernel turns back with `to_float`."""
    return struct.unpack("<I", struct.pack("<f", value))[0]
