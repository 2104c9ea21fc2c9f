"""One line per event, in the ServerApp's own log."""

import logging

# A child of Flower's logger, so that `flwr run --stream` and `flwr log` show these lines too.
log = logging.getLogger("flwr.fedcohort")
