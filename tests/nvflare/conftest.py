import importlib.util
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
# The helpers beside the tests are imported by their plain name.
sys.path[:0] = [str(HERE), str(HERE / "digits_job")]

spec = importlib.util.find_spec("nvflare")
# This folder has the same name; without NVFlare it would be taken for the package.
if spec is None or spec.origin is None:
    collect_ignore_glob = ["test_*.py"]
