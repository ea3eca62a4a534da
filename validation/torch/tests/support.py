"""What the tests of this folder share."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1]
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(FOLDER))

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (pip install torch)")


def _has_fake_world() -> bool:
    return HAS_TORCH and importlib.util.find_spec("torch.distributed._tools.fake_collectives") is not None


needs_fake_world = unittest.skipUnless(_has_fake_world(), "fake collectives need a newer PyTorch (2.14 is known to do)")

TINY_MODEL = {
    "model_type": "transformer",
    "layers": 2,
    "hidden": 64,
    "heads": 4,
    "kv_heads": 2,
    "ffn_hidden": 172,
    "vocab": 1000,
}


def tiny_run(**sections: Any) -> dict[str, Any]:
    """A run file of two small blocks on two ranks."""
    return {
        "schema": "shardsim.run/1",
        "id": "tiny",
        "model": TINY_MODEL,
        "cluster": {"profile": "dgx-h100", "gpus": 2},
        "batch": {"sequence_length": 16, "micro_batch": 1, "global_batch": 2},
        **sections,
    }


def run_python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs one of the folder's scripts; fake devices change the process that registers them."""
    command = [sys.executable, str(FOLDER / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
