"""The page about models of one's own shows code that runs."""

from pathlib import Path

import torch

PAGE = Path(__file__).parents[2] / "docs" / "your-own-model.md"


def test_its_model_trains_and_is_loaded_again():
    code = PAGE.read_text("utf-8").split("```python\n")[1].split("```")[0]
    there = {"__name__": "page"}
    exec(code.replace("rounds=20", "rounds=1, clients=12, cohort=4, progress=False"), there)
    (final,) = (values for name, values in there["again"].named_parameters() if name == "out.bias")
    assert torch.equal(final, there["results"].models["match", 0]["out.bias"])
