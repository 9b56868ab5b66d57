"""How much of a small update reaches the model: the change of a text's summed log-probability after N AdamW steps that
increase it, by precision and system.

  npm run --silent bench -- small-updates MODEL_FOLDER [--systems NAME ...] [--ranks 8 32] [--rates RATE ...] [--seeds 1]
    [--steps 30] >> results.jsonl
  npm run bench -- small-updates --table FILE

Prints a line of JSON for each run. `--table` prints such lines as a Markdown table instead.
Systems: Hone in bfloat16, also with weights rounded to nearest, and in float32; PEFT with a bfloat16 base and float32
adapters; full fine-tuning in bfloat16 with float32 masters, in Hone and in plain torch. All adapters start from the
same values.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

STEPS = (1, 2, 3, 5, 8, 12, 20, 30)
RATES = (1e-6, 5e-6, 2e-5, 1e-4, 5e-4)
ADAM = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
TEXT = "The tide had gone out, and the boats lay on their sides in the mud. Ann counted eleven of them."
SYSTEMS = (
    "hone-bfloat16",
    "hone-bfloat16-nearest",
    "hone-float32",
    "peft-bfloat16",
    "hone-full-bfloat16",
    "hone-full-float32",
    "plain-full-bfloat16",
)


def in_hone(model: Path, system: str, tokens: list[int]):
    from hone_worker.models.model import load_model
    from hone_worker.policies.adamw import AdamSettings
    from hone_worker.policies.registry import Policies
    from hone_worker.policies.rounding import Thresholds
    from hone_worker.training.sequences import Sequences
    from hone_worker.training.trainer import Trainer

    if "nearest" in system:
        Thresholds.round = lambda self, weight, target: target.copy_(weight)
    dtype = "float32" if "float32" in system else "bfloat16"
    policies = Policies(load_model(str(model), "model", cache_dir=model, device="cpu", dtype=dtype))
    sequences = Sequences(
        np.array(tokens, np.int32), np.array([0, len(tokens)]), np.ones(len(tokens) - 1, np.uint8)
    )
    trainer = Trainer()

    def run(rank: int, rate: float, seed: int, steps: int) -> list[float]:
        lora = {"kind": "lora", "rank": rank, "alpha": rank, "targets": ["attn", "mlp"], "seed": seed}
        number = policies.create({"kind": "full"} if rank == 0 else lora)
        policy, seen = policies[number], []

        def increase(_, outputs):
            seen.append(float(outputs["logprobs"].double().sum()))
            return {"logprobs": torch.full_like(outputs["logprobs"], -1 / (len(tokens) - 1))}

        settings = AdamSettings(rate, *ADAM["betas"], ADAM["eps"], ADAM["weight_decay"], max_grad_norm=0.0)
        for _ in range(steps):
            trainer.forward_backward(policy, sequences, ["logprobs"], increase)
            policy.optim_step(settings)
            policy.publish()
        seen.append(float(trainer.forward(policy, sequences, ["logprobs"])["logprobs"].double().sum()))
        policies.close(number)
        return seen

    return run


def in_torch(model: Path, system: str, tokens: list[int]):
    """PEFT's adapters, or all weights."""
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    start = {name: weight.detach().clone() for name, weight in base.named_parameters()}
    ids = torch.tensor([tokens])

    def adapted(rank: int, seed: int):
        import peft
        from hone_worker.policies.lora import initial_a

        config = peft.LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", task_type="CAUSAL_LM")
        network = peft.get_peft_model(base, config)
        weights = [(name, weight) for name, weight in network.named_parameters() if "lora_" in name]
        for name, weight in weights:
            weight.data = weight.data.float()
            if "lora_A" in name:
                plain = name.removeprefix("base_model.model.").split(".lora_A")[0]
                weight.data.copy_(initial_a(seed, plain, rank, weight.shape[1]))
        return network, [weight for _, weight in weights]

    @torch.no_grad()
    def restored():
        for name, weight in base.named_parameters():
            weight.copy_(start[name])
        return base, list(base.parameters())

    def run(rank: int, rate: float, seed: int, steps: int) -> list[float]:
        network, weights = adapted(rank, seed) if rank > 0 else restored()
        masters = weights if rank > 0 else [weight.detach().float() for weight in weights]
        optimizer = torch.optim.AdamW(masters, lr=rate, **ADAM)
        seen = []
        for step in range(steps + 1):
            with torch.set_grad_enabled(step < steps):
                logprobs = network(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
                chosen = logprobs.gather(1, ids[0, 1:, None])[:, 0]
            seen.append(float(chosen.detach().double().sum()))
            if step < steps:
                (-chosen.mean()).backward()
                if rank == 0:
                    for master, weight in zip(masters, weights):
                        master.grad, weight.grad = weight.grad.float(), None
                optimizer.step()
                optimizer.zero_grad()
                if rank == 0:
                    with torch.no_grad():
                        for master, weight in zip(masters, weights):
                            weight.copy_(master)
        if rank > 0:
            network.unload()
        return seen

    return run


def table(file: Path) -> None:
    runs = sorted(map(json.loads, file.read_text().splitlines()), key=lambda run: run["order"])
    steps = [step for step in STEPS if any(str(step) in run["change"] for run in runs)]
    print(f"| rank | learning rate | system | {' | '.join(map(str, steps))} |")
    print(f"|{'---|' * (3 + len(steps))}")
    for run in runs:
        cells = [f"{run['change'].get(str(step), float('nan')):.2f}" for step in steps]
        print(f"| {run['rank'] or 'all'} | {run['rate']:g} | {run['system']} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--systems", nargs="+", default=SYSTEMS)
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 32])
    parser.add_argument("--rates", nargs="+", type=float, default=RATES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=max(STEPS))
    parser.add_argument("--table", action="store_true", help="`model` is a file of results")
    options = parser.parse_args()
    if options.table:
        table(options.model)
        return
    from tokenizers import Tokenizer

    tokens = Tokenizer.from_file(str(options.model / "tokenizer.json")).encode(TEXT).ids
    for system in options.systems:
        run_system = (in_hone if system.startswith("hone") else in_torch)(options.model, system, tokens)
        for rank in [0] if "full" in system else options.ranks:
            for rate in options.rates:
                for seed in options.seeds:
                    seen = run_system(rank, rate, seed, options.steps)
                    change = {step: seen[step] - seen[0] for step in STEPS if step < len(seen)}
                    order = [rank, rate, SYSTEMS.index(system), seed]
                    run = {"system": system, "rank": rank, "rate": rate, "seed": seed, "order": order}
                    print(json.dumps({**run, "change": change}), flush=True)
                    print(system, rank, rate, seed, change, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
