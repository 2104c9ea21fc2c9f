"""How far is Theorem 1 of the paper from real data?

The theorem says that the output of neuron q of FC-1 over the samples of one class is Gaussian with
mean Σ_v ω_qv μ_v + b_q and variance Σ_v (ω_qv σ_v)². The mean is exact by linearity. The variance
assumes that input features are uncorrelated, and normality needs weak dependence; both are
measured here, on the initial model, class by class.

    python benchmarks/theorem1.py [--quick] [--json] [--save FILE]
"""

import argparse
import json

import numpy as np
import torch
from markdown import add_save, save, table
from scipy import stats

from fedcohort.profiles.fc1 import find_layer
from fedcohort.simulation import RunConfig
from fedcohort.simulation.device_data import load_device_data
from fedcohort.simulation.materials import Materials


def fc1_inputs_and_outputs(name):
    """Return FC-1's inputs [N, V], outputs [N, Q], the layer, and the labels [N]."""
    config, materials = RunConfig(dataset=name), Materials()
    dataset, model = materials.dataset(config), materials.model(config)
    layer = find_layer(model, None)
    seen = []
    layer.register_forward_hook(lambda _m, inputs, output: seen.append((inputs[0], output)))
    x, y = load_device_data(dataset, config, torch.device("cpu")).train
    with torch.no_grad():
        for part in torch.split(x, 2000):
            model(part)
    inputs, outputs = (torch.cat(parts).double().numpy() for parts in zip(*seen, strict=True))
    return inputs, outputs, layer, y.numpy()


def compare(inputs, outputs, layer):
    """Compare one class with the theorem; all numbers are over the neurons of FC-1."""
    weight, bias = (p.detach().double().numpy() for p in (layer.weight, layer.bias))
    mean = inputs.mean(0) @ weight.T + bias
    variance = inputs.var(0) @ (weight**2).T
    ratio = outputs.var(0) / variance
    centred = (outputs - outputs.mean(0)) / outputs.std(0)
    claimed = (outputs - mean) / np.sqrt(variance)
    normal = stats.norm.cdf
    return {
        "mean error": float(np.abs(outputs.mean(0) - mean).max() / outputs.std(0).mean()),
        "variance ratio": float(np.median(ratio)),
        "ratio low": float(np.quantile(ratio, 0.05)),
        "ratio high": float(np.quantile(ratio, 0.95)),
        "KS to a Gaussian": float(
            np.median([stats.kstest(c, normal).statistic for c in centred.T])
        ),
        "KS to the claim": float(np.median([stats.kstest(c, normal).statistic for c in claimed.T])),
        "skewness": float(np.median(np.abs(stats.skew(outputs)))),
        "kurtosis": float(np.median(stats.kurtosis(outputs))),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="digits only")
    parser.add_argument("--json", action="store_true")
    add_save(parser)
    options = parser.parse_args()
    results = {}
    for name in ("digits",) if options.quick else ("digits", "mnist", "fashion-mnist"):
        inputs, outputs, layer, labels = fc1_inputs_and_outputs(name)
        classes = [compare(inputs[labels == j], outputs[labels == j], layer) for j in range(10)]
        results[name] = {key: float(np.mean([c[key] for c in classes])) for key in classes[0]}
    columns = list(next(iter(results.values())))
    rows = [[name, *(f"{row[key]:.3g}" for key in columns)] for name, row in results.items()]
    table("FC-1 means against Theorem 1", ["data", *columns], rows)
    save(options.save)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
