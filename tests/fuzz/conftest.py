import pathlib
import sys

# The helpers beside the tests are imported by their plain name.
sys.path.insert(0, str(pathlib.Path(__file__).parent))
