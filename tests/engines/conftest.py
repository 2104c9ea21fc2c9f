import pathlib
import sys

TESTS = pathlib.Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("engines", "flower", "nvflare")]
