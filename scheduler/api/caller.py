"""Who makes the call that is being served."""

from __future__ import annotations

from contextvars import ContextVar

# The name of his token; empty where no tokens are asked for. Set before a call's handler runs,
# in a context that is the call's own.
CALLER: ContextVar[str] = ContextVar("caller", default="")
