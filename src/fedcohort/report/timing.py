"""Times as readers want them."""


def time_left(seconds: float | None) -> str:
    """Return a time left in words that are no more exact than it is."""
    return "measuring the time left" if seconds is None else f"about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
