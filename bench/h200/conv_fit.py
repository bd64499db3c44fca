#!/usr/bin/env python3
"""Trees that say what cuDNN takes beside its tensors for a convolution, from what `conv_workspaces.py` measured.

    python3 conv_fit.py results/conv-workspaces.csv.gz --score                                  # models held out
    python3 conv_fit.py results/conv-workspaces.csv.gz -o ../../crates/memory/weights/h200-cudnn-workspaces.txt

A tree's answer is a share of input, weight and output, in bytes. One tree for each pass, size of a number and layout; its
splits look at the geometry alone. Needs scikit-learn.
"""

import argparse
import csv
import gzip
import math

PASSES = ("forward", "dgrad", "wgrad")
# Chosen with models held out (--score). Those of models count more than random ones: a leaf is to be right for what people run.
DEPTH, LEAF, OF_MODELS, MOST_SHARE = 12, 8, 3.0, 6.0
RANDOM = ("random", "wide")
# As `Geometry::features` of crates/memory/src/cudnn.rs has them.
FEATURES = "dims transposed n c k c_even k_even kernel_most kernel_least stride dilation groups side area grows weighs".split()


def rows(path):
    """(group of the tree, source, features, bytes of the tensors, bytes measured by pass)."""
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            if row["error"]:
                continue
            spots = ("input", "kernel", "stride", "padding", "dilation")
            size, kernel, stride, padding, dilation = ([int(n) for n in row[spot].split("x")] for spot in spots)
            n, c, k, groups, transposed = (int(row[name]) for name in ("n", "c", "k", "groups", "transposed"))
            steps = list(zip(size, kernel, stride, padding, dilation))
            if transposed:
                out = [(i - 1) * s - 2 * p + d * (q - 1) + 1 for i, q, s, p, d in steps]
            else:
                out = [(i + 2 * p - d * (q - 1) - 1) // s + 1 for i, q, s, p, d in steps]
            x, y = n * c * math.prod(size), n * k * math.prod(out)
            w = c * k // groups * math.prod(kernel)
            even = lambda number: min(number & -number, 16)
            features = [
                len(size), transposed, n, c // groups, k // groups, even(c), even(k), max(kernel), min(kernel), max(stride),
                max(dilation), groups, max(size), math.prod(size), y / x, w / (x + y),
            ]  # fmt: skip
            width = {"fp32": 4, "bf16": 2}[row["dtype"]]
            yield (width, row["layout"]), row["source"], features, (x + y + w) * width, [int(row[p + "_b"]) for p in PASSES]


def grown(sources, features, shares, sizes):
    """Large convolutions count more."""
    from sklearn.tree import DecisionTreeRegressor

    tree = DecisionTreeRegressor(criterion="absolute_error", max_depth=DEPTH, min_samples_leaf=LEAF, random_state=0)
    weights = [size**0.5 * (1 if source in RANDOM else OF_MODELS) for source, size in zip(sources, sizes)]
    return tree.fit(features, shares, sample_weight=weights)


def written(tree, at=0):
    """Its nodes, a branch before what is not above its number, and that before the rest."""
    inner = tree.tree_
    if inner.children_left[at] < 0:
        return [f"= {float(inner.value[at][0][0]):.3f}"]
    line = f"{FEATURES[inner.feature[at]]} {inner.threshold[at]:.6g}"
    left, right = written(tree, inner.children_left[at]), written(tree, inner.children_right[at])
    return left if left == right else [line, *left, *right]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("-o", "--output")
    parser.add_argument("--score", action="store_true")
    options = parser.parse_args()
    groups = {}
    for group, *rest in rows(options.data):
        groups.setdefault(group, []).append(rest)
    lines = []
    for group, found in sorted(groups.items()):
        for at, name in enumerate(PASSES):
            shares = [min(parts[at] / size, MOST_SHARE) for _, _, size, parts in found]
            sources, features, sizes = ([row[column] for row in found] for column in range(3))
            if options.score:
                models = sorted(set(sources) - set(RANDOM))
                off = total = 0.0
                for fold in range(6):
                    out = set(models[fold::6])
                    kept = [(source, f, s, size) for (source, f, size, _), s in zip(found, shares) if source not in out]
                    tree = grown(*zip(*kept))
                    held = [(f, size, parts[at]) for source, f, size, parts in found if source in out]
                    for share, (_, size, true) in zip(tree.predict([f for f, _, _ in held]), held):
                        off, total = off + abs(share * size - true), total + true
                print(f"{group[0]} bytes, channels {group[1]}, {name}: {100 * off / total:.0f} % of {total / 2**30:.1f} GiB")
            if options.output:
                lines += [f"tree {group[0]} {group[1]} {name}", *written(grown(sources, features, shares, sizes))]
    if options.output:
        with open(options.output, "w") as file:
            file.write("\n".join(lines) + "\n")
        print(len(lines), "lines")


if __name__ == "__main__":
    main()
