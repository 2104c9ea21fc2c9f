"""An app whose clients know themselves by their node configuration."""
