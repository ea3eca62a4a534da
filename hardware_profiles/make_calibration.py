#!/usr/bin/env python3
"""Fits the calibration constants of every profile in this folder and writes their "calibration" blocks.

Reads the measured tables in validation/measured/{kernels,collectives} and the profiles beside this file;
needs numpy and scipy. The same inputs give the same constants (rounded to four digits).
The formulas are those of src/cost: matmul.cpp, attention.cpp, collective.cpp.

    python3 hardware_profiles/make_calibration.py            # rewrite the profiles
    python3 hardware_profiles/make_calibration.py --report   # print the fits and their errors only
"""
import csv
import json
import math
import re
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "validation/measured/kernels"
COLLECTIVES = ROOT / "validation/measured/collectives"
US = 1e-6


def rows_of(path):
    with open(path) as lines:
        yield from csv.reader(line for line in lines if not line.startswith("#"))


def fit_log(predict, measured, start, weights, prior=0.02):
    """Least squares of log(predicted / measured), parameters kept positive and drawn to their start."""
    x0 = np.log(start)
    log_measured = np.log(measured)

    def residuals(x):
        return np.concatenate([weights * (np.log(predict(np.exp(x))) - log_measured), prior * (x - x0)])

    return np.exp(least_squares(residuals, x0, loss="soft_l1", f_scale=0.1, diff_step=1e-3, max_nfev=80).x)


# --- matmul ---------------------------------------------------------------------------------------------

PEAK = {"a100_sxm": {"bfloat16": 312e12}, "h100_sxm": {"bfloat16": 989e12, "fp8": 1979e12},
        "b200_sxm": {"bfloat16": 2250e12, "fp8": 4500e12, "nvfp4": 9000e12},
        "l40s": {"bfloat16": 362e12, "fp8": 733e12}}
HBM = {"a100_sxm": 2.039e12, "h100_sxm": 3.35e12, "b200_sxm": 8e12, "l40s": 0.864e12}
ELEMENT = {"bfloat16": 2.0, "fp8": 1.0, "nvfp4": 0.5}


def matmul_time(p, m, n, k, peak, hbm, element):
    """p: fixed, efficiency, unbounded_efficiency, half_m, half_n, half_k, memory_fraction."""
    flops = 2 * m * n * k
    compute = np.maximum(flops / (p[1] * peak),
                         flops / (p[2] * peak) * (1 + p[3] / m) * (1 + p[4] / n) * (1 + p[5] / k))
    moved = element * (m * k + k * n) + 2 * m * n
    return p[0] + np.maximum(compute, moved / (p[6] * hbm))


def fit_matmul(gpu, dtype):
    table = np.array([[float(x) for x in r[3:]] for r in rows_of(KERNELS / "matmul.csv")
                      if r[0] == gpu and r[1] == dtype and min(int(r[3]), int(r[4]), int(r[5])) >= 128])
    m, n, k, t = table.T
    t = t * US
    peak, hbm, element = PEAK[gpu][dtype], HBM[gpu], ELEMENT[dtype]
    weights = np.where((m >= 2048) & (n >= 1024) & (k >= 1024), 3.0, 1.0)
    start = [3e-6, 0.75, 0.85, 100, 100, 100, 0.7]
    if dtype == "bfloat16":
        p = fit_log(lambda q: matmul_time(q, m, n, k, peak, hbm, element), t, start, weights)
    else:
        # The timed operation quantises its m x k activations first: fitted beside the matmul, then left out,
        # because a program has kernels of its own for that.
        p = fit_log(lambda q: matmul_time(q, m, n, k, peak, hbm, element) + q[7] + q[8] * m * k, t,
                    start + [8e-6, 3e-12], weights)
        t = t - p[7] - p[8] * m * k
    big = (m >= 1024) & (n >= 1024) & (k >= 1024)
    error = (matmul_time(p, m, n, k, peak, hbm, element) / t - 1)[big]
    return p[:7], float(np.mean(np.abs(error)))


def training_layout(p):
    """Scale of the A100 PCIe against the A100 SXM fit `p`, and the layouts' rates relative to forward."""
    ratio = defaultdict(list)
    for batch, m, n, k, layout, efficiency in rows_of(KERNELS / "matmul_training_layout_a100_pcie.csv"):
        m, n, k, batch = float(m), float(n), float(k), float(batch)
        if min(m, n, k) < 1024 and not layout.startswith("grouped"):
            continue
        flops = 2 * m * n * k
        ratio[layout].append(float(efficiency) / (flops / 312e12 / matmul_time(p, m, n, k, 312e12, 1.935e12, 2.0)))
    return {layout: float(np.mean(r)) for layout, r in ratio.items()}


# --- attention ------------------------------------------------------------------------------------------

ATTENTION_PEAK = {"A100-SXM4-80GB": 312.0, "H100-SXM5-80GB": 989.0}
SMS = {"A100-SXM4-80GB": 108, "H100-SXM5-80GB": 132}
OCCUPANCY = {"forward": 1.2, "backward": 0.65}


def fit_attention(kernel, gpu, dim, mask, direction):
    """(efficiency, half_length): rate = efficiency / (1 + half_length / s), occupancy taken out."""
    table = np.array([[float(r[5]), float(r[6])] for r in rows_of(KERNELS / "flash_attention_published.csv")
                      if r[:5] == [kernel, gpu, str(dim), mask, direction]])
    if not len(table):
        return None
    s, rate = table.T
    tiles = 16384 / 128 * (2048 / dim)
    occupancy = tiles / (tiles + OCCUPANCY["backward" if direction == "backward" else "forward"] * SMS[gpu])
    rate = rate / ATTENTION_PEAK[gpu] / occupancy
    return fit_log(lambda q: q[0] / (1 + q[1] / s), rate, [0.5, 200.0], np.ones(len(s)), 0.0)


def attention_sets():
    """Per implementation: forward and backward efficiency at head sizes 64 and 128, half lengths."""
    h100 = "H100-SXM5-80GB"
    sets = {}
    for name, kernel in (("flash2", "FlashAttention-2"), ("flash3", "FlashAttention-3")):
        fits = {(d, mask, way): fit_attention(kernel, h100, d, mask, way)
                for d in (64, 128) for mask in ("full", "causal") for way in ("forward", "backward")}
        extra = np.mean([fits[d, "causal", "forward"][1] - fits[d, "full", "forward"][1] for d in (64, 128)])
        sets["h100", name] = {
            "forward": {d: fits[d, "full", "forward"][0] for d in (64, 128)},
            "backward": {d: fits[d, "full", "backward"][0] for d in (64, 128)},
            "forward_half": np.mean([fits[d, "full", "forward"][1] for d in (64, 128)]),
            "backward_half": np.mean([fits[d, "full", "backward"][1] for d in (64, 128)]),
            "causal_extra": extra}
    # A100: forward + backward is published as one rate of 3.5 x forward FLOPs; the split between the two is
    # that of the same kernels on H100.
    h = sets["h100", "flash2"]
    a = dict(h, forward={}, backward={})
    for d in (64, 128):
        both = fit_attention("FlashAttention-2", "A100-SXM4-80GB", d, "full", "forward+backward")
        slower = h["backward"][d] / h["forward"][d]
        a["forward"][d] = both[0] * (1 + 2.5 / slower) / 3.5
        a["backward"][d] = a["forward"][d] * slower
    sets["a100", "flash2"] = a
    # cuDNN on H100: only the backward at 128 is published; forward and 64 keep FlashAttention-3's proportions.
    f3 = sets["h100", "flash3"]
    ratio = fit_attention("cuDNN", h100, 128, "full", "backward")[0] / f3["backward"][128]
    sets["h100", "cudnn"] = dict(f3, forward={d: f3["forward"][d] * ratio for d in (64, 128)},
                                 backward={d: f3["backward"][d] * ratio for d in (64, 128)})
    return sets


# --- collectives ----------------------------------------------------------------------------------------

PROTOCOLS = ("ll", "ll128", "simple")
PAYLOAD = {"ll": 0.5, "ll128": 0.92, "simple": 1.0}
START = {"ring.ll.base": 6.6e-6, "ring.ll.hop": 0.8e-6, "ring.ll.fraction": 0.05,
         "ring.ll128.base": 9e-6, "ring.ll128.hop": 1.5e-6, "ring.ll128.fraction": 0.4,
         "ring.simple.base": 14e-6, "ring.simple.hop": 3.4e-6, "ring.simple.fraction": 0.82,
         "tree.ll.base": 7e-6, "tree.ll.hop": 0.8e-6, "tree.ll.fraction": 0.03,
         "tree.ll128.base": 12e-6, "tree.ll128.hop": 1.25e-6, "tree.ll128.fraction": 0.28,
         "tree.simple.base": 14e-6, "tree.simple.hop": 4e-6, "tree.simple.fraction": 0.40,
         "local_fraction": 1.5, "nvls.base": 35e-6, "nvls.fraction": 0.6, "nvls_tree.fraction": 0.6,
         "network.ring.ll.hop": 5e-6, "network.ring.ll128.hop": 7.4e-6, "network.ring.simple.hop": 26e-6,
         "network.tree.ll.hop": 5e-6, "network.tree.ll128.hop": 20e-6, "network.tree.simple.hop": 60e-6, "network.fraction": 0.95,
         "direct.base": 12e-6, "direct.peer": 1e-6, "direct.fraction": 0.75, "direct.network_fraction": 0.75}


def load(name):
    return [(r[0], int(r[1]), int(r[2]), int(r[3]), float(r[4]) * US) for r in rows_of(COLLECTIVES / (name + ".csv"))]


def tree_gain(nodes):
    return {1: 2.0, 2: 2.0, 3: 4 / 3}.get(nodes, 1.0)


def ring_times(op, n, nodes, size, p, intra, inter):
    rounds = 2 if op == "all_reduce" else 1
    steps, hops = rounds * (n - 1), rounds * (nodes - 1)
    for name in PROTOCOLS:
        latency = p[f"ring.{name}.base"] + (steps - hops) * p[f"ring.{name}.hop"] + hops * p[f"network.ring.{name}.hop"]
        rate = intra * p[f"ring.{name}.fraction"]
        if nodes > 1:
            rate = min(rate, inter * p["network.fraction"] * PAYLOAD[name])
        yield latency + steps / n * size / rate + size / n / (intra * p["local_fraction"])


def tree_times(n, nodes, size, p, intra, inter):
    for name in PROTOCOLS:
        latency = p[f"tree.{name}.base"] + 2 * ((n // nodes - 1) * p[f"tree.{name}.hop"]
                                                + math.log2(nodes) * p[f"network.tree.{name}.hop"])
        rate = intra * p[f"tree.{name}.fraction"]
        if nodes > 1:
            rate = min(rate, inter * p["network.fraction"] * PAYLOAD[name] * tree_gain(nodes) / 2)
        yield latency + size / rate


def nvls_times(n, nodes, size, p, intra, inter):
    if not p.get("nvls.min_ranks") or n // nodes < p["nvls.min_ranks"]:
        return
    if nodes == 1:
        yield p["nvls.base"] + size / (intra * p["nvls.fraction"])
    else:
        rate = min(intra * p["nvls_tree.fraction"], inter * p["network.fraction"] * tree_gain(nodes) / 2)
        yield p["nvls.base"] + 2 * math.log2(nodes) * p["network.tree.simple.hop"] + size / rate


def collective_time(row, p, intra, inter):
    op, n, nodes, size, _ = row
    if op == "all_to_all":
        away = n - n // nodes
        inside = size / n * (n // nodes - 1) / (intra * p["direct.fraction"])
        outside = size / n * away * (n // nodes) / (inter * p["direct.network_fraction"]) if nodes > 1 else 0.0
        hop = p["network.ring.simple.hop"] if nodes > 1 else 0.0
        return (p["direct.base"] + (n - 1) * p["direct.peer"] + hop + max(inside, outside)
                + size / n / (intra * p["local_fraction"]))
    times = list(ring_times(op, n, nodes, size, p, intra, inter))
    if op == "all_reduce":
        times += list(tree_times(n, nodes, size, p, intra, inter)) + list(nvls_times(n, nodes, size, p, intra, inter))
    return min(times)


def weight_of(row):
    return 3.0 if row[3] >= 2**26 else 2.0 if row[3] >= 2**20 else 1.0


def fit_constants(groups, p, free, prior):
    """groups: [(rows, intra, inter, weight)]."""
    measured = np.array([r[4] for rows, *_ in groups for r in rows])
    weights = np.array([w * weight_of(r) for rows, _, _, w in groups for r in rows])

    def predict(x):
        q = dict(p, **dict(zip(free, x)))
        return np.array([collective_time(r, q, intra, inter) for rows, intra, inter, _ in groups for r in rows])

    return dict(p, **dict(zip(free, fit_log(predict, measured, [p[k] for k in free], weights, prior))))


def mean_error(rows, p, intra, inter, smallest=2**20):
    errors = [collective_time(r, p, intra, inter) / r[4] - 1 for r in rows if r[3] >= smallest]
    return float(np.mean(np.abs(errors))), float(np.mean(errors)), len(errors)


def ratio_rows():
    """The published ring ratios over 8-GPU nodes as all-gather times at 8 x 48.5 GB/s."""
    out = []
    for size, nodes, fraction in rows_of(COLLECTIVES / "h100_infiniband_ring_ratio.csv"):
        n, size = 8 * int(nodes), int(size)
        out.append(("all_gather", n, int(nodes), size, size * (n - 1) / n / (float(fraction) * 8 * 48.5e9)))
    return out


def fit_collectives():
    rings = ("all_gather", "reduce_scatter", "all_reduce")
    inside = [k for k in START if not k.startswith(("network", "direct", "nvls"))]
    nvls = ["nvls.base"]
    direct = ["direct.base", "direct.peer", "direct.fraction"]
    nodes = {}
    for name, table, intra, nvls_ranks, nvls_fraction in (("a100", "a100_sxm_node", 300e9, 0, 0.6),
                                                          ("h100", "h100_sxm_node", 450e9, 5, 0.6),
                                                          ("b200", "b200_sxm_node", 900e9, 6, 0.535)):
        rows = load(table)
        if name == "a100":
            # This older set launches eight GPUs from one process, which inflates small sizes only.
            rows += [r for r in load("a100_sxm_40gb_node") if r[3] >= 2**26]
        p = dict(START, **{"nvls.min_ranks": nvls_ranks, "nvls.fraction": nvls_fraction, "nvls.base": 100e-6})
        groups = [([r for r in rows if r[0] in rings], intra, 0.0, 1.0)]
        free = inside + (nvls if nvls_ranks else [])
        if name == "h100":
            groups.append((ratio_rows(), intra, 400e9, 0.5))
            free = free + ["network.ring.simple.hop", "network.fraction"]
        p = fit_constants(groups, p, free, 0.1)
        p = fit_constants([([r for r in rows if r[0] == "all_to_all"], intra, 0.0, 1.0)], p, direct, 0.05)
        nodes[name] = p
    fabrics = {}
    hops = [f"network.tree.{protocol}.hop" for protocol in PROTOCOLS] + ["network.fraction"]
    for name, table, node, intra, inter in (
            ("infiniband_b200", "b200_infiniband_2_nodes", "b200", 900e9, 400e9),
            ("efa_p4de", "p4de_efa_2_nodes", "a100", 300e9, 50e9),
            ("tcpxo", "a3mega_tcpxo_2_nodes", "h100", 450e9, 200e9),
            ("efa_p6", "p6_b200_efa_4_nodes", "b200", 900e9, 400e9),
            ("roce_h100", "h100_roce_2_nodes", "h100", 450e9, 400e9),
            ("roce_a100", "a100_roce_2_nodes", "a100", 300e9, 100e9)):
        rows = [r for r in load(table) if r[0] in rings]
        free = hops + ([f"network.ring.{protocol}.hop" for protocol in PROTOCOLS] if name == "tcpxo" else [])
        free = free + (["nvls_tree.fraction"] if nodes[node]["nvls.min_ranks"] and name != "tcpxo" else [])
        p = fit_constants([(rows, intra, inter, 1.0)], nodes[node], free, 0.15)
        fabrics[name] = (p, rows, intra, inter)
    return nodes, fabrics


def report():
    for gpu, dtypes in PEAK.items():
        for dtype in dtypes:
            p, error = fit_matmul(gpu, dtype)
            print(gpu, dtype, [float(f"{v:.4g}") for v in p], f"mean error {error:.3f}")
            if gpu == "a100_sxm":
                print("  training layouts", training_layout(p))
    for key, value in attention_sets().items():
        print(key, value)
    nodes, fabrics = fit_collectives()
    for name, table, intra in (("a100", "a100_sxm_node", 300e9), ("h100", "h100_sxm_node", 450e9),
                               ("b200", "b200_sxm_node", 900e9)):
        print(name, {k: float(f"{v * 1e6 if v < 1e-3 else v:.3g}") for k, v in nodes[name].items()})
        for op in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
            rows = [r for r in load(table) if r[0] == op and r[1] == 8]
            print("  ", op, "x8 >= 1 MiB: mean error %.3f bias %.3f n %d" % mean_error(rows, nodes[name], intra, 0.0))
    print("ratio", mean_error(ratio_rows(), nodes["h100"], 450e9, 400e9))
    for name, (p, rows, intra, inter) in fabrics.items():
        for op in ("all_gather", "all_reduce"):
            some = [r for r in rows if r[0] == op]
            if some:
                print(name, op, "mean error %.3f bias %.3f n %d" % mean_error(some, p, intra, inter),
                      {k: float(f"{p[k]:.3g}") for k in p if k.startswith(("network", "nvls_tree"))})


# --- profiles -------------------------------------------------------------------------------------------

MEASURED, PUBLISHED, ASSUMED = "measured", "published", "assumed"
GEMM = "least squares on validation/measured/kernels/matmul.csv ({})"
TRAINING = "validation/measured/kernels/matmul_training_layout_a100_pcie.csv, rate relative to forward"
NCCL = "least squares on validation/measured/collectives/{}.csv, form of NCCL's tuner"
GPU_OF = {"ampere": "a100_sxm", "hopper": "h100_sxm", "blackwell": "b200_sxm", "ada": "l40s"}
NOMINAL_WATTS = {"ampere": 400, "hopper": 700}
NODE_OF = {"ampere": "a100", "hopper": "h100", "blackwell": "b200"}
TABLE_OF = {"a100": "a100_sxm_node", "h100": "h100_sxm_node", "b200": "b200_sxm_node"}
FABRIC_OF = {"dgx-b200": "infiniband_b200", "dgx-b300": "infiniband_b200", "gb200-nvl72": "infiniband_b200",
             "gb300-nvl72": "infiniband_b200", "p4d": "efa_p4de", "p4de": "efa_p4de", "a3-mega": "tcpxo"}
FABRIC_TABLE = {"infiniband_b200": "b200_infiniband_2_nodes", "efa_p4de": "p4de_efa_2_nodes",
                "tcpxo": "a3mega_tcpxo_2_nodes"}


class Block:
    """The calibration of one profile under construction."""

    def __init__(self):
        self.constants = {}

    def put(self, name, value, kind, source):
        self.constants[name] = {"value": float(f"{value:.4g}"), "source": source, "kind": kind}


def put_matmul(block, device, gemm, layouts):
    architecture = device["architecture"]
    gpu = GPU_OF.get(architecture)
    # Sustained clocks under a power cap follow about its cube root (dynamic power grows with f V^2): the A100 PCIe
    # (300 W) runs the fitted matmuls at 0.919 of the 400 W SXM part, the rule says 0.909.
    cap = min(1.0, device["power_watts"] / NOMINAL_WATTS.get(architecture, device["power_watts"])) ** (1 / 3)
    note = "" if cap == 1.0 else f"; times ({device['power_watts']} W / {NOMINAL_WATTS[architecture]} W)^(1/3)"
    for dtype, table in (("bf16", "bfloat16"), ("fp8", "fp8"), ("fp4", "nvfp4")):
        key, kind = (gpu, table), MEASURED
        if key not in gemm:
            key, kind = ("b200_sxm", table), ASSUMED
            if dtype == "bf16":
                key = ("a100_sxm", table)
        if note:
            kind = ASSUMED
        source = GEMM.format(key[0]) + note
        _, efficiency, unbounded, half_m, half_n, half_k, _ = gemm[key]
        if architecture == "cdna3" and dtype != "fp4":
            # Best shape found: 668.4 of 1307 TFLOP/s (stas00/ml-engineering @744d01e, MAMF).
            unbounded, efficiency = 0.511 * unbounded / efficiency, 0.511
            kind, source = PUBLISHED, "stas00/ml-engineering @744d01e compute/accelerator: MAMF 668.4 of 1307 TFLOP/s"
        block.put(f"matmul.{dtype}.efficiency", efficiency * cap, kind, source)
        block.put(f"matmul.{dtype}.unbounded_efficiency", unbounded * cap, kind, source)
        for name, value in (("half_m", half_m), ("half_n", half_n), ("half_k", half_k)):
            block.put(f"matmul.{dtype}.{name}", value, kind, source)
    base = gemm.get((gpu, "bfloat16"), gemm["a100_sxm", "bfloat16"])
    kind = MEASURED if gpu else ASSUMED
    source = GEMM.format(gpu or "a100_sxm")
    block.put("matmul.fixed_s", base[0], kind, source)
    block.put("matmul.memory_fraction", min(base[6], 0.9), kind, source)
    for dtype in ("tf32", "fp32"):
        block.put(f"matmul.{dtype}.efficiency", base[1] * cap, ASSUMED, "as bf16 on the same device")
    forward = layouts["forward"]
    layout_kind = MEASURED if architecture == "ampere" else ASSUMED
    block.put("matmul.layout.data_gradient", layouts["data_gradient"] / forward, layout_kind, TRAINING)
    block.put("matmul.layout.weight_gradient", layouts["data_gradient"] / forward, ASSUMED,
              "as the data gradient: no measurement without fp32 accumulation")
    block.put("matmul.layout.weight_gradient_fp32", layouts["weight_gradient_fp32"] / forward, layout_kind, TRAINING)
    if architecture == "blackwell":
        block.put("matmul.layout.grouped", 0.30 / 0.49, PUBLISHED,
                  "MooreThreads/SimuMax @4dcaae5 b200: grouped 0.30 against 0.49 of peak")
    else:
        block.put("matmul.layout.grouped", min(1.0, layouts["grouped_forward"] / forward), layout_kind, TRAINING)


def put_attention(block, device, sets):
    architecture = device["architecture"]
    gpu = {"ampere": "a100", "hopper": "h100", "blackwell": "h100"}.get(architecture, "a100")
    table = "least squares on validation/measured/kernels/flash_attention_published.csv ({})"
    cap = min(1.0, device["power_watts"] / NOMINAL_WATTS.get(architecture, device["power_watts"])) ** (1 / 3)
    for name in ("flash2", "flash3", "cudnn"):
        key = (gpu, name) if (gpu, name) in sets else (gpu, "flash2")
        fit = sets[key]
        kind = PUBLISHED if key[1] == name and architecture in ("ampere", "hopper") and cap == 1.0 else ASSUMED
        source = table.format(f"{key[1]} on {key[0]}")
        scale, half, extra = cap, None, fit["causal_extra"]
        if architecture == "blackwell" and name != "flash2":
            # aiconfigurator's forward tables on B200 fit 0.49 of peak with 1,600 tokens of half length when causal.
            scale, half, extra = 0.49 / fit["forward"][128], 800.0, 800.0
            kind, source = MEASURED, "least squares on validation/measured/kernels/attention_forward.csv (b200_sxm)"
        for way in ("forward", "backward"):
            for dim in (64, 128):
                block.put(f"attention.{name}.{way}.efficiency_{dim}", fit[way][dim] * scale, kind, source)
            block.put(f"attention.{name}.{way}.half_length", half or fit[f"{way}_half"], kind, source)
        block.put(f"attention.{name}.causal_extra_length", extra, kind, source)
    block.put("attention.fixed_s", 5e-6, ASSUMED, "launch and tail of one fused attention kernel")
    block.put("attention.flash1_factor", 0.55, PUBLISHED,
              "arXiv 2307.08691 section 4.1: FlashAttention-2 is 1.7 to 3.0 times as fast as FlashAttention")
    block.put("attention.flex_forward_factor", 0.90, PUBLISHED, "PyTorch FlexAttention announcement: 90 % of FA2 forward")
    block.put("attention.flex_backward_factor", 0.85, PUBLISHED, "PyTorch FlexAttention announcement: 85 % of FA2 backward")
    for way in ("forward", "backward"):
        block.put(f"attention.tiles_per_sm.{way}", OCCUPANCY[way], ASSUMED,
                  "tiles each SM must have before the grid is full: taken out before fitting the tables")


def put_memory_kernels(block, architecture):
    copy = {"blackwell": 0.727, "hopper": 0.752, "ampere": 0.775}.get(architecture)
    source = "stas00/ml-engineering @744d01e: device copy 1581 of 2039 (A100), 2520 of 3350 (H100), 5815 of 8000 GB/s (GB200)"
    kind = MEASURED if copy else ASSUMED
    copy = copy or 0.75
    for name in ("copy", "cast", "elementwise", "reduction", "optimizer"):
        block.put(f"memory_kernel.{name}.fraction", copy, kind if name == "copy" else ASSUMED,
                  source if name == "copy" else "as a device copy: " + source)
    for name in ("norm", "softmax"):
        block.put(f"memory_kernel.{name}.fraction", 0.9 * copy, ASSUMED, "0.9 of a device copy: a reduction inside each row")
    block.put("memory_kernel.embedding.fraction", 0.6 * copy, ASSUMED, "0.6 of a device copy: rows at random addresses")
    block.put("memory_kernel.fixed_s", 1.5e-6, ASSUMED, "start and drain of a short kernel behind another")


def put_collectives(block, name, profile, nodes, fabrics):
    architecture = profile["device"]["architecture"]
    node = NODE_OF.get(architecture)
    switch = profile["node"]["fabric"] == "nvswitch"
    fabric = FABRIC_OF.get(name)
    constants = fabrics[fabric][0] if fabric else nodes[node] if node else dict(START)
    inside_kind = MEASURED if node and switch else ASSUMED
    inside = NCCL.format(TABLE_OF[node]) if node else "NCCL v2.28.9 src/graph/tuning.cc, latencies and efficiencies of DGX class machines"
    outside_kind = MEASURED if fabric else ASSUMED
    outside = NCCL.format(FABRIC_TABLE[fabric]) if fabric else (
        NCCL.format("h100_infiniband_ring_ratio") if node == "h100" else
        "two-node InfiniBand and RoCE fits of the same form (validation/measured/collectives)")
    if node == "h100" and not fabric:
        outside_kind = MEASURED
    for key in START:
        value = constants[key]
        second = key.endswith((".base", ".hop", ".peer"))
        network = key.startswith("network") or key in ("nvls_tree.fraction", "direct.network_fraction")
        # A fit without data on a protocol wanders: no hop is slower than half a millisecond.
        value = min(value, 5e-4) if second else value
        block.put(f"collective.{key}" + ("_s" if second else ""), value, outside_kind if network else inside_kind,
                  outside if network else inside)
    nvls = profile["node"].get("nvls", False) and node
    block.put("collective.nvls.min_ranks", nodes[node]["nvls.min_ranks"] if nvls else 0, PUBLISHED,
              "stas00/ml-engineering @744d01e network chapter: seen from 5 GPUs on H200, 6 on B200; 0: never")
    block.put("collective.unaligned_slowdown", 3.5, MEASURED, "horovod PR 3727: 7 ms instead of 2 ms for an unaligned all-gather")
    channels = {"a100": 24, "h100": 24, "b200": 16}.get(node, 2) if switch else 2
    block.put("collective.channels.node", channels, PUBLISHED, "NVIDIA/nccl issue 689 and tuning of the ring graph on one node")
    block.put("collective.channels.network", 16 if switch else 2, PUBLISHED, "NVIDIA/nccl: 8 NICs x 2 channels; 2 on PCIe boxes")
    block.put("collective.channels.nvls", 16, PUBLISHED, "NVIDIA/nccl issues 1649 and 1656")
    block.put("collective.channels.direct", 16 if switch else 2, ASSUMED, "as rings over the network")
    block.put("collective.channel_bytes", 524288, PUBLISHED, "NVIDIA/nccl v2.28.9: NVLink p2p chunk of 512 KiB")
    block.put("collective.memory_passes", 2.5, PUBLISHED, "two to three passes over device memory for each byte on the bus")


# Seconds of CPU time on one core of a current server: no public per-release table exists, hence assumed. Eager PyTorch
# spends several microseconds per operator in the dispatcher, autograd and the driver; compiled code the driver and a stub.
HOST = {"torch_eager": (6e-6, 30e-6, 8e-6, 120e-6, 4e-6, 200e-6, 2e-6, 1e-3),
        "torch_compile": (3e-6, 30e-6, 8e-6, 120e-6, 4e-6, 200e-6, 2e-6, 1e-3),
        "megatron": (70e-6, 25e-6, 5e-6, 50e-6, 1e-6, 300e-6, 1e-6, 1e-3),
        "megatron_legacy": (57e-6, 30e-6, 5e-6, 50e-6, 1e-6, 300e-6, 1e-6, 1e-3),
        "deepspeed": (6e-6, 35e-6, 25e-6, 100e-6, 5e-6, 500e-6, 2e-6, 1e-3)}
# Megatron's layers spend far more Python per kernel than a plain module does. Steps of tiny models on 1 to 8 GPUs, where
# nothing but the CPU thread matters, divided by the kernels of the step as `shardsim show program` counts them.
MEASURED_LAUNCH = {
    "megatron": "Megatron-LM functional tests (launch_bound_step_time_s of megatron_lm_ci_golden.json): the fastest of 60 "
                "tests, gpt3_mcore_te_tp2_pp2_cross_entropy_loss_fusion on H100; most take 100 to 120 us, with deterministic "
                "kernels and checks switched on",
    "megatron_legacy": "vTrain single-node runs h1024, tp 4, micro-batch 1: 56.7 to 57.1 us in four runs (tp 8: 80 us); "
                       "Megatron-LM functional tests of the local layers take 86 to 145 us"}
HOST_NAMES = ("launch_s", "collective_s", "module_hook_s", "unit_hook_s", "parameter_hook_s", "optimizer_step_s",
              "optimizer_parameter_s", "micro_batch_s")


def put_host(block):
    for stack, values in HOST.items():
        for name, value in zip(HOST_NAMES, values):
            if name == "launch_s" and stack in MEASURED_LAUNCH:
                block.put(f"host.{stack}.{name}", value, MEASURED, MEASURED_LAUNCH[stack])
            else:
                block.put(f"host.{stack}.{name}", value, ASSUMED, "CPU time of one core of a current server")
    block.put("device.slowest_of_many", 0.95, PUBLISHED,
              "stas00/ml-engineering @744d01e benchmarks chapter: matmul rates of one node's GPUs spread by about 5 %")
    block.put("host.synchronize_s", 20e-6, ASSUMED, "return of a blocking CUDA call")
    block.put("copy.latency_s", 1e-5, ASSUMED, "launch of a copy engine transfer")
    block.put("copy.pinned_fraction", 0.85, MEASURED, "nvbandwidth: 25.1 of 31.5 (Gen4), 55.4 of 63 GB/s (Gen5)")
    block.put("copy.pageable_fraction", 0.2, MEASURED, "deepspeedai/DeepSpeed PR 5301: pinning is 4 to 6 times as fast")


def write_profiles():
    gemm = {(gpu, dtype): fit_matmul(gpu, dtype)[0] for gpu, dtypes in PEAK.items() for dtype in dtypes}
    layouts = training_layout(gemm["a100_sxm", "bfloat16"])
    sets = attention_sets()
    nodes, fabrics = fit_collectives()
    for path in sorted((ROOT / "hardware_profiles").glob("*.json")):
        profile = json.loads(path.read_text())
        block = Block()
        put_matmul(block, profile["device"], gemm, layouts)
        put_attention(block, profile["device"], sets)
        put_memory_kernels(block, profile["device"]["architecture"])
        put_collectives(block, path.stem, profile, nodes, fabrics)
        put_host(block)
        kept = {name: value for name, value in profile["calibration"].items() if name.startswith("memory.")}
        kept.setdefault("memory.nvls_bytes", {"value": 0, "source": "no published figure for NVLS buffers", "kind": ASSUMED})
        profile["calibration"] = dict(sorted({**kept, **block.constants}.items()))
        path.write_text(json.dumps(profile, indent=2) + "\n")


if __name__ == "__main__":
    if "--report" in sys.argv:
        report()
    else:
        write_profiles()
