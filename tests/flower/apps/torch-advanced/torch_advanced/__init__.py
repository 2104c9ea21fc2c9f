"""A strategy with a start of its own, a decaying rate and heads that stay local."""
