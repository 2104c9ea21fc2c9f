"""One line per event, in the ServerApp's own log."""

import logging

from flwr.app import Message

# A child of Flower's logger, so that `flwr run --stream` and `flwr log` show these lines too.
log = logging.getLogger("flwr.fedcohort")


def reason_of(reply: Message) -> str:
    """Return the reason of an error reply as one line."""
    lines = (reply.error.reason or "").strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else f"error {reply.error.code}"
