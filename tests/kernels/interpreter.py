"""Triton's interpreter without a third of its time: it looks through all of `triton.language` for
what to patch at a kernel's launch, until whose end it stays patched, and again at each call of a
device function, where nothing is left to patch."""

from __future__ import annotations

from types import FunctionType

import triton.language as tl
from triton.runtime import interpreter

_patch = interpreter._patch_lang


def _patch_once(fn: FunctionType) -> interpreter._LangPatchScope:
    """Patches what `fn` sees of the language, unless that is done."""
    seen = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
    if any(tl.core.is_builtin(language.load) for language in seen):
        return _patch(fn)
    return interpreter._LangPatchScope()


def patch_once_a_launch() -> None:
    """For the rest of the process."""
    interpreter._patch_lang = _patch_once
