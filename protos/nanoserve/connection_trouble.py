"""Why no connection could be made, in words that say what to do."""

from __future__ import annotations

_CLOSED = (
    "the server closes connections before a call: it wants TLS (give its CA) or, with TLS, "
    "another client certificate (its log says why), or it is going away"
)
_CLOSED_LATER = (
    "it closes connections before a call: it is ending; if that lasts, it wants other certificates "
    "than before (its log says why)"
)
# What gRPC and its TLS library say -> what it means, by the first that is found.
_REASONS: tuple[tuple[str, str], ...] = (
    (
        "CERTIFICATE_VERIFY_FAILED: certificate has expired",
        "the server's certificate has expired: renew it there",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED: certificate is not yet valid",
        "the server's certificate is not valid yet: compare the clocks of both machines",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is not signed by the CA that was given: give the CA that "
        "signed it",
    ),
    (
        "Hostname Verification Check failed",
        "the server's certificate is for another host name: dial a name or an address that it "
        "lists, or give the server a certificate for this one",
    ),
    (
        "WRONG_VERSION_NUMBER",
        "the server does not speak TLS: connect without a CA, or start the server with TLS",
    ),
    ("Socket closed", _CLOSED),
    ("Connection reset by peer", _CLOSED),
)
_NOBODY = ("Connection refused", "No such file or directory")


def trouble(details: str | None) -> str | None:
    """`details` of a failed call, if they tell that TLS, or the lack of it, is in the way of a
    connection; None for anything else, such as a server that is not there."""
    if not details or not details.startswith("failed to connect"):
        return None
    return next((reason for sign, reason in _REASONS if sign in details), None)


def worker_trouble(details: str | None, *, served_before: bool) -> str | None:
    """The same of a worker, in the words of its scheduler, and also if nobody is there.
    `served_before`: a worker that was connected closes connections because it ends."""
    reason = trouble(details)
    if served_before and reason is _CLOSED:
        return _CLOSED_LATER
    if reason is None and details and details.startswith("failed to connect"):
        signs = [sign for sign in _NOBODY if sign in details]
        return f"nobody listens there ({signs[0]})" if signs else None
    return reason
