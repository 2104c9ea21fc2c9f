"""Values from bytes: what both fuzzing engines drive the harnesses with."""

import numpy as np

SPECIAL = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-308,
    5e-324,
    1e-12,
    1e6,
    1e30,
    1e154,
    1e308,
    -1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
TYPES = (np.float64, np.float32, np.float16, np.int64, np.uint8, np.bool_, np.complex128, object)


class Reader:
    """Reads values from bytes, and zeros when they have run out."""

    def __init__(self, data):
        self._data = data
        self._at = 0

    def take(self, count):
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken.ljust(count, b"\0")

    def rest(self):
        taken = self._data[self._at :]
        self._at = len(self._data)
        return taken

    def integer(self, low, high):
        return low + int.from_bytes(self.take(4), "little") % (high - low + 1)

    def flag(self):
        return bool(self.take(1)[0] & 1)

    def rarely(self):
        """Say yes about once in 16 times, never once the bytes have run out."""
        return self.take(1)[0] % 16 == 15

    def choice(self, options):
        return options[self.integer(0, len(options) - 1)]

    def rng(self):
        return np.random.default_rng(self.integer(0, 2**31))

    def number(self):
        kind = self.integer(0, 3)
        if kind == 0:
            return self.choice(SPECIAL)
        if kind == 1:
            return float(self.integer(-1000, 1000))
        if kind == 2:
            return float(np.frombuffer(self.take(8), np.float64)[0])
        return self.integer(-100, 100) / 100

    def text(self, most=20):
        return self.take(self.integer(0, most)).decode("utf-8", "replace")

    def value(self, depth=1):
        """Return something that may stand where another thing is expected."""
        kind = self.integer(0, 8 if depth else 6)
        if kind == 7:
            return [self.value(0) for _ in range(self.integer(0, 3))]
        if kind == 8:
            return {self.text(6): self.value(0) for _ in range(self.integer(0, 2))}
        return (None, True, self.integer(-5, 200), self.number(), self.text(), "1", 10**30)[kind]

    def array(self, shape):
        """Return an array of numbers: plain, with duplicates, tiny, huge, or with bad values."""
        rng = self.rng()
        values = rng.normal(size=shape)
        if values.size == 0:
            return values
        if self.flag():
            values[rng.integers(len(values), size=len(values) // 2)] = values[0]
        if self.rarely():
            values[:] = values.flat[0]
        if self.flag():
            with np.errstate(all="ignore"):
                values = values * self.choice((1e-300, 1e-30, 1e-3, 1e3, 1e6, 1e150, 1e300))
        if self.flag():
            values.flat[rng.integers(values.size)] = self.number()
        if self.rarely():
            values = values + self.choice((1e3, 1e8, 1e16))
        if self.rarely():
            with np.errstate(all="ignore"):
                values = values.real.astype(self.choice(TYPES))
        return values
