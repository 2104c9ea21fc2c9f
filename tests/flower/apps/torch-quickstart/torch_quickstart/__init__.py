"""A small net on digits, as a first Flower app has it."""
