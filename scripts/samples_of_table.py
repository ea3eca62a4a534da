#!/usr/bin/env python3
"""Writes a table of validation/measured/{kernels,collectives} as samples for `shardsim calibrate` (shardsim.samples/1).

    scripts/samples_of_table.py validation/measured/collectives/h100_sxm_node.csv > h100-collectives.json
    scripts/samples_of_table.py validation/measured/kernels/matmul.csv h100_sxm bfloat16 > h100-matmuls.json

Matmuls with a side below 128 are left out, as the profiles' own fit does.
"""
import csv
import json
import sys
from pathlib import Path

DTYPES = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "fp4"}
MICRO = 1e-6


def rows_of(path):
    with open(path) as lines:
        yield from csv.reader(line for line in lines if not line.startswith("#"))


def seconds(text):
    return float(f"{float(text) * MICRO:.6g}")


def matmuls(path, gpu, dtype):
    for row in rows_of(path):
        m, n, k = (int(cell) for cell in row[3:6])
        if row[:2] == [gpu, dtype] and min(m, n, k) >= 128:
            yield {"kind": "matmul", "m": m, "n": n, "k": k, "dtype": DTYPES[dtype], "time_s": seconds(row[6])}


def collectives(path):
    for op, ranks, nodes, size, time in rows_of(path):
        yield {"kind": "collective", "op": op, "bytes": int(size), "ranks": int(ranks), "nodes": int(nodes),
               "time_s": seconds(time)}


def main():
    path, *which = sys.argv[1:]
    samples = matmuls(path, *which) if Path(path).name == "matmul.csv" else collectives(path)
    source = " ".join([Path(path).name, *which])
    text = ",\n  ".join(json.dumps(sample) for sample in samples)
    print(f'{{"schema": "shardsim.samples/1", "source": {json.dumps(source)}, "samples": [\n  {text}\n]}}')


if __name__ == "__main__":
    main()
