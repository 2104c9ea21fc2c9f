import pathlib

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def load(context: Context, partition: int) -> tuple[Floats, NDArray[np.int64]]:
    with np.load(pathlib.Path(str(context.run_config["folder"])) / "data.npz") as file:
        mine = file["owner"] == partition
        return file["x"][mine], file["y"][mine]


def first_model(x: Floats) -> dict[str, Floats]:
    return {"w": np.zeros((x.shape[1], 10), np.float32), "b": np.zeros(10, np.float32)}


def probabilities(model: dict[str, Floats], x: Floats) -> Floats:
    scores = x @ model["w"] + model["b"]
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


def train(model: dict[str, Floats], x: Floats, y: NDArray[np.int64]) -> float:
    for _ in range(20):
        error = probabilities(model, x) - np.eye(10, dtype=np.float32)[y]
        model["w"] = model["w"] - 0.5 * x.T @ error / len(x)
        model["b"] = model["b"] - 0.5 * error.mean(0)
    return float(-np.log(probabilities(model, x)[np.arange(len(y)), y] + 1e-9).mean())
