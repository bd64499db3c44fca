#!/usr/bin/env python3
"""Fits the constants of crates/memory/src/activity.rs to what models did alone on an H200.

    carma lab estimate-bench --only activity --kernels kernels.jsonl
    python3 activity_fit.py kernels.jsonl                  # constants; scores in sample and of the later models
    python3 activity_fit.py kernels.jsonl --score          # families held out as well, and the quantiles of errors for bounds

A run counts once, however many descriptions of its model there are. Needs NumPy and SciPy; minutes.
"""

import argparse
import collections
import json

import numpy as np
from scipy.optimize import least_squares

WAVE = 132 * 2048.0
# name, where the fit begins
CONSTANTS = (
    ("products fp32, T/s", 40), ("products 16 bits, T/s", 300), ("convolutions TF32, T/s", 120), ("convolutions 16 bits, T/s", 250),
    ("bandwidth, TB/s", 2.2), ("floor, us", 3), ("grouped, share of the bandwidth", 0.5), ("backward, times the bytes", 2),
    ("launch, us", 12), ("launch backward, us", 10), ("tensor of the optimizer, us", 3), ("q", 3), ("waves that fill", 0.5),
    ("fills, exponent", 0.3), ("seen", 0.95), ("engine, exponent", 1),
)  # fmt: skip
BEGIN = np.log([start for _, start in CONSTANTS])


class Runs:
    def __init__(self, path):
        with open(path) as file:
            rows = [json.loads(line) for line in file]
        self.rows = rows = [row for row in rows if row["kernels"]]
        count = collections.Counter(row["id"] for row in rows)
        self.weight = np.array([count[row["id"]] ** -0.5 for row in rows])
        self.later = np.array([row["later"] for row in rows])
        self.family = np.array([row["family"] for row in rows])
        self.train = np.array([row["mode"] == "train" for row in rows])
        self.full = np.array([row["precision"] == "fp32" for row in rows])
        self.autocast = np.array([row["precision"].endswith("autocast") for row in rows])
        self.measured = {name: np.array([row[name] for row in rows]) for name in ("gract", "smact", "smocc", "drama", "step_ms")}
        self.log_step = np.log(self.measured["step_ms"] / 1000)
        moved = {"adam": 44.0, "adamw": 44.0, "adam8bit": 44.0, "adam-fused": 28.0}
        state = np.where(self.full | self.autocast, 1, 0.5)
        self.tensors = np.array([row["tensors"] for row in rows], float)
        self.optimizer = state * np.array([moved.get(row["optimizer"], 20.0) * row["parameters"] for row in rows])
        kernels = [kernel for row in rows for kernel in row["kernels"]]
        sizes = [len(row["kernels"]) for row in rows]
        self.first, self.row = np.cumsum([0, *sizes])[:-1], np.repeat(np.arange(len(rows)), sizes)
        self.kind = np.array([kernel[0] for kernel in kernels])
        self.flops, self.numbers, parameters, self.launches = np.array([kernel[1:] for kernel in kernels]).T
        width = np.where(self.full, 4.0, 2.0)[self.row]
        width = np.where(self.autocast[self.row] & (self.kind == "traffic"), 3.0, width)
        self.bytes = (self.numbers + parameters) * width

    def summed(self, values):
        return np.add.reduceat(values, self.first)

    def said(self, logs):
        """SMACT, seconds of a step, GRACT, share of the time that is bound by traffic."""
        (products, products16, convs, convs16, bandwidth, floor, grouped, back, launch, launch_back, tensor, q, waves, fills, seen,
         engine) = np.exp(logs)  # fmt: skip
        rate = lambda a, b: np.where(self.full, a, b)[self.row] * 1e12
        memory, floor = self.bytes / (bandwidth * 1e12), floor * 1e-6
        arithmetic = np.select(
            [self.kind == "product", self.kind != "traffic"],
            [self.flops / rate(products, products16), self.flops / rate(convs, convs16)], 0.0,
        )  # fmt: skip
        arithmetic = np.where(self.kind == "grouped", np.maximum(arithmetic, memory / grouped), arithmetic)
        least = floor * self.launches
        forward = np.maximum(np.maximum(arithmetic, memory), least)
        backward = np.where(
            self.kind == "traffic", np.maximum(back * memory, least),
            np.maximum(np.maximum(2 * arithmetic, back * memory), 2 * floor),
        )  # fmt: skip
        time = forward + np.where(self.train[self.row], backward, 0)
        gpu, launches = self.summed(time), self.summed(self.launches)
        fill = np.minimum(1, np.maximum(self.numbers / 2 / WAVE, 1e-3) / waves) ** fills
        filled, traffic = self.summed(time * fill) / gpu, self.summed(time * np.minimum(memory / forward, 1)) / gpu
        gpu = gpu + np.where(self.train, self.optimizer / (bandwidth * 1e12) + self.tensors * 1e-7, 0)
        host = launches * launch * 1e-6 + np.where(self.train, (launches * launch_back + self.tensors * tensor) * 1e-6, 0)
        step = (gpu**q + host**q) ** (1 / q)
        busy = np.minimum(gpu / step, 1)
        return busy**engine * np.clip(filled * seen, 0, 0.97), step, busy, traffic * busy

    def fit(self, chosen):
        def errors(logs):
            smact, step, gract, _ = self.said(logs)
            weight, of = self.weight[chosen], self.measured
            return np.concatenate([
                3 * weight * (smact - of["smact"])[chosen], 0.5 * weight * (np.log(step) - self.log_step)[chosen],
                1.5 * weight * (gract - of["gract"])[chosen], 0.3 * (logs - BEGIN),
            ])  # fmt: skip

        return least_squares(errors, BEGIN, loss="soft_l1", f_scale=0.3, max_nfev=40).x

    def power(self, x, name, chosen):
        """`c` and `e` of c x^e."""
        error = lambda p: self.weight[chosen] * (np.exp(p[0]) * x[chosen] ** np.exp(p[1]) - self.measured[name][chosen])
        return np.exp(least_squares(error, [0.0, 0.0], loss="soft_l1", f_scale=0.1).x)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kernels")
    parser.add_argument("--score", action="store_true")
    options = parser.parse_args()
    runs = Runs(options.kernels)
    fitted = ~runs.later
    logs = runs.fit(fitted)
    for (name, _), value in zip(CONSTANTS, np.exp(logs)):
        print(f"{name:34} {value:.4g}")
    smact, step, _, traffic = runs.said(logs)
    powers = {}
    for name, x in (("smocc", smact), ("drama", traffic)):
        powers[name] = runs.power(np.maximum(x, 1e-3), name, fitted)
        print(f"{name:34} {powers[name][0]:.4g} x^{powers[name][1]:.4g}")

    def errors(smact, step, traffic):
        said = {name: powers[name][0] * np.maximum(x, 1e-3) ** powers[name][1] for name, x in (("smocc", smact), ("drama", traffic))}
        off = {name: runs.measured[name] - value for name, value in {"smact": smact, **said}.items()}
        return {**off, "log step": runs.log_step - np.log(step)}

    def show(what, off, chosen):
        mean = {name: np.average(abs(value[chosen]), weights=runs.weight[chosen] ** 2) for name, value in off.items()}
        print(f"{what}: " + ", ".join(f"{name} {value:.3f}" for name, value in mean.items()))

    off = errors(smact, step, traffic)
    show("in sample", off, fitted)
    show("later models", off, runs.later)
    if options.score:
        families = sorted(set(runs.family[fitted]))
        held = [values.copy() for values in (smact, step, traffic)]
        for part in range(5):
            out = np.isin(runs.family, families[part::5])
            found = runs.said(runs.fit(fitted & ~out))
            for values, new in zip(held, (found[0], found[1], found[3])):
                values[out] = new[out]
        off = errors(*held)
        show("families held out", off, fitted)
        for name, value in off.items():
            for mode in (True, False):
                low, high = np.quantile(value[runs.train == mode], [0.05, 0.95])
                print(f"{name} {'training' if mode else 'inference'}: {low:+.3f} {high:+.3f}")


if __name__ == "__main__":
    main()
