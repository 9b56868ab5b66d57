"""One part of the proof: prints a row of JSON for each measurement."""

import argparse
import gc
import importlib.util
import json
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from hone_worker.attention.context import AttentionSpec
from hone_worker.attention.tree import Family, Span, Tree
from hone_worker.memory_fit import Fit, Room
from hone_worker.memory_plan import Training, measure
from hone_worker.policies.adamw import AdamSettings
from hone_worker.policies.registry import Policies
from hone_worker.sampling.draw import Draw
from hone_worker.sampling.packed_batch import PackedBatch
from hone_worker.sampling.rows import Request
from hone_worker.sampling.sampler import Sampler
from hone_worker.training.sequences import Sequences
from hone_worker.training.trainer import Trainer
from shapes import config_of, device_name, load_random

ROOT = Path(__file__).resolve().parents[3]
LORA = {"kind": "lora", "rank": 16, "alpha": 32, "targets": ["attn", "mlp"], "seed": 1}
FULL = {"kind": "full"}
ADAM = AdamSettings(1e-5, 0.9, 0.95, 1e-8, 0.0, 1.0)


class Place:
    """The device, and how time and memory are measured on it."""

    def __init__(self, small: bool):
        self.small, self.name = small, device_name(small)
        self.on_gpu = self.name == "cuda"
        self.device = torch.device("cuda:0") if self.on_gpu else torch.device(self.name)
        self.dtype = torch.bfloat16 if self.on_gpu else torch.float32

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, run, times: int) -> float:
        """The median of some runs, after one that warms up."""
        found = []
        for count in range(times + 1):
            self.wait()
            begin = time.perf_counter()
            run()
            self.wait()
            if count:
                found.append(time.perf_counter() - begin)
        return sorted(found)[len(found) // 2]

    def clear(self) -> None:
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() if self.on_gpu else 0

    def fastest(self) -> float:
        """FLOP/s of a large matrix product."""
        size = 8192 if self.on_gpu else 256
        a = torch.randn(size, size, dtype=self.dtype).to(self.device)
        return 2 * size**3 / self.seconds(lambda: a @ a, 10)


def show(part: str, what: str, run) -> None:
    """Prints the row of a measurement, also if it fails: the next one can still run."""
    try:
        row = {"values": run()}
    except Exception as error:  # noqa: BLE001 - a proof reports all failures
        traceback.print_exc()
        row = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    print(json.dumps({"part": part, "what": what, **row}), flush=True)


def attention(place: Place) -> None:
    """FlexAttention and tiles beside torch's SDPA: of a row that is one sequence, of many sequences, and of families."""
    from hone_worker.attention.flex import FlexTree

    rows = {
        "1 x 16k": ([(16384, [])], True),
        "8 x 2k": ([(2048, [])] * 8, True),
        "32 x 512 after a shared prefix of 512": ([(512, [512] * 32)], True),
        "1 x 64k": ([(65536, [])], False),
    }
    if place.small:
        rows = {"1 x 192": ([(192, [])], True), "4 x 32 after a shared prefix of 32": ([(32, [32] * 4)], True)}
    heads, key_heads, width = (16, 8, 128) if place.on_gpu else (4, 2, 16)
    for what, (families, has_tiles) in rows.items():
        spans, positions, at = [], [], 0
        for prompt, branches in families:
            family = [Span(at, prompt)]
            positions.append(torch.arange(prompt))
            for length in branches:
                family.append(Span(family[-1].start + family[-1].length, length))
                positions.append(torch.arange(prompt, prompt + length))
            at = family[-1].start + family[-1].length
            spans.append(Family(family[0], tuple(family[1:])))
        where = torch.cat(positions).to(place.device)
        generator = torch.Generator().manual_seed(0)
        inputs = [
            torch.randn(at, each, width, generator=generator).to(place.dtype).to(place.device)
            for each in (heads, key_heads, key_heads)
        ]
        spec = AttentionSpec(width**-0.5, None, None, None)

        def run_with(attend):
            leaves = [x.detach().requires_grad_() for x in inputs]
            output = attend(*leaves)
            output.backward(torch.ones_like(output))
            return [output.detach(), *(x.grad for x in leaves)]

        def tree(kind):
            context = kind(spans, where)
            return lambda q, k, v: context.attend(0, q, k, v, spec)

        def sdpa(q, k, v):
            """Each sequence by itself, with its prompt computed again."""
            out = torch.zeros_like(q)
            for family in spans:
                prompt = slice(family.prompt.start, family.prompt.start + family.prompt.length)
                for span in family.branches or (None,):
                    own = prompt if span is None else slice(span.start, span.start + span.length)
                    parts = [prompt] if span is None else [prompt, own]
                    each = [torch.cat([x[part] for part in parts]).transpose(0, 1)[None] for x in (q, k, v)]
                    found = F.scaled_dot_product_attention(*each, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
                    out[prompt] = found[: family.prompt.length]
                    out[own] = found[-(own.stop - own.start) :]
            return out

        expected = run_with(sdpa)
        kinds = {"sdpa": sdpa, **({"flex": tree(FlexTree)} if place.on_gpu else {}), **({"tiles": tree(Tree)} if has_tiles else {})}
        for name, attend in kinds.items():

            def values(attend=attend, name=name):
                place.clear()
                before = place.peak()
                found = run_with(attend)
                held = place.peak() - before
                # A prompt whose branches are computed apart gets a part of its gradient from each of them, rounded.
                worst = max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(found[:1], expected[:1]))
                slopes = max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in zip(found[2:], expected[2:]))
                if worst > 0.02:
                    raise AssertionError(f"outputs differ from SDPA's by {worst:.1e}")
                times = {"ms": round(1000 * place.seconds(lambda: run_with(attend), 5), 2)}
                memory = {"peak GiB": round(held / 2**30, 2)} if place.on_gpu else {}
                return {**times, **memory, "output error": f"{worst:.0e}", "gradient error": f"{slopes:.0e}"}

            show("attention", f"{what}, {name}", values)


def trainer(place: Place, name: str, cases: list[tuple[dict, int]]) -> None:
    """Tokens per second, memory beside the plan's, and the share of the device's fastest matrix product."""
    fastest = place.fastest()
    for adapter, tokens in cases:
        kind = "LoRA 16" if adapter is LORA else "full"
        show("trainer", f"{name}, {kind}, {tokens:,} tokens", lambda adapter=adapter, tokens=tokens: train(place, name, adapter, tokens, fastest))


def train(place: Place, name: str, adapter: dict, tokens: int, fastest: float) -> dict:
    place.clear()
    config = config_of(name)
    free = torch.cuda.mem_get_info()[0] if place.on_gpu else 2**40
    kernel = "cuda" if place.on_gpu else "cpu"
    for checkpointing in (False, True):
        training = Training(adapter, tokens, place.dtype, kernel, checkpointing)
        parts = measure(config, training)
        if Room(kernel, free, free, 0).holds(parts.needed):
            break
    else:
        return {"does not fit": Fit(training, parts, None).report(0)["text"]}
    before = torch.cuda.memory_allocated() if place.on_gpu else 0
    model = load_random(
        name, str(place.device), str(place.dtype).removeprefix("torch."), gradient_checkpointing=training.checkpointing
    )
    policies = Policies(model)
    policy = policies[policies.create(adapter)]
    ids = np.random.default_rng(0).integers(3, 500, tokens + 1).astype(np.int32)
    sequences = Sequences(ids, np.array([0, tokens + 1]), np.ones(tokens, np.uint8))
    engine = Trainer(micro_batch_tokens=tokens + 1)

    def step() -> None:
        engine.forward_backward(policy, sequences, ["logprobs"], lambda _, outputs: {"logprobs": torch.ones_like(outputs["logprobs"])})
        policy.optim_step(ADAM)
        policy.publish()

    seconds = place.seconds(step, 2 if tokens > 20_000 else 3)
    flops = model_flops(config, adapter, tokens)
    memory = {}
    if place.on_gpu:
        peak = place.peak() - before
        memory = {
            "peak GiB": round(peak / 2**30, 1),
            "planned GiB": round(parts.needed / 2**30, 1),
            "planned / peak": round(parts.needed / peak, 2),
        }
    return {
        "tokens/s": round(tokens / seconds),
        "MFU": f"{100 * flops / seconds / fastest:.0f}% of {fastest / 1e12:.3g} TFLOP/s",
        **memory,
        "recomputes": training.checkpointing,
        "attention": model.tree.__name__,
    }


def model_flops(config, adapter: dict, tokens: int) -> float:
    """Of a forward and a backward of one sequence, without what is recomputed. A frozen weight needs no gradient of its own."""
    h, d = config.num_attention_heads, config.head_dim
    layer = config.hidden_size * d * (2 * h + 2 * config.num_key_value_heads) + 3 * config.hidden_size * config.intermediate_size
    weights = config.num_hidden_layers * layer + config.hidden_size * config.vocab_size
    causal = config.num_hidden_layers * 2 * tokens * h * d  # per token, forward: half of QK' and of PV
    return tokens * ((4 if adapter is LORA else 6) * weights + 3.5 * causal)


def sampler(place: Place) -> None:
    """New tokens per second of the worker sampler, after the prompts are read."""
    name = "tiny" if place.small else "Qwen3-0.6B"
    model = load_random(name, str(place.device), str(place.dtype).removeprefix("torch."))
    policies = Policies(model)
    policy = policies[policies.create({"kind": "none"})]
    sizes = {1: 16, 4: 16} if place.small else {1: 128, 32: 128, 256: 128}
    for rows, new in sizes.items():
        show("sampler", f"{name}, {rows} rows", lambda rows=rows, new=new: sample(place, model, policy, rows, new))


def sample(place: Place, model, policy, rows: int, new: int) -> dict:
    prompt = np.random.default_rng(0).integers(3, 500, 32 if place.small else 512).tolist()
    failed: list[BaseException] = []
    batch = Sampler(
        device=model.device,
        max_rows=rows,
        make_batch=PackedBatch,
        open_tokenizer=lambda: None,
        emit=lambda *_: None,
        fail=lambda _, error: failed.append(error),
    )

    def run(count: int) -> float:
        requests = [Request([*prompt, 3 + row], Draw(), count, frozenset(), (), row) for row in range(rows)]
        place.wait()
        begin = time.perf_counter()
        batch.add(1, policy, requests, False)
        while batch.busy:
            batch.step()
        place.wait()
        if failed:
            raise failed[0]
        return time.perf_counter() - begin

    run(new)  # warms up
    prefill = run(1)
    seconds = run(new) - prefill
    return {
        "tokens/s": round(rows * (new - 1) / seconds),
        "ms per step": round(1000 * seconds / (new - 1), 2),
        "prefill ms": round(1000 * prefill, 1),
    }


def grpo(place: Place) -> None:
    """A GRPO step of the same model and batch in Hone's worker and in TRL: 16 prompts x 8 replies, LoRA."""
    prompts, replies, new = (2, 2, 8) if place.small else (16, 8, 256)
    name = "tiny" if place.small else "Qwen3-0.6B"
    show("grpo", f"Hone, {name}, {prompts} x {replies} x {new}", lambda: hone_step(place, name, prompts, replies, new))
    if importlib.util.find_spec("trl") is None or importlib.util.find_spec("datasets") is None:
        print(json.dumps({"part": "grpo", "what": "TRL", "skipped": "TRL is not installed"}), flush=True)
        return
    show("grpo", f"TRL, {name}, {prompts} x {replies} x {new}", lambda: trl_step(name, prompts, replies, new))


def hone_step(place: Place, name: str, prompts: int, replies: int, new: int) -> dict:
    model = load_random(name, str(place.device), str(place.dtype).removeprefix("torch."))
    policies = Policies(model)
    policy = policies[policies.create(LORA)]
    engine = Trainer()
    random = np.random.default_rng(0)
    spent = Counter()

    def step() -> None:
        begin = time.perf_counter()
        samples: dict[int, list[int]] = {}
        texts = [random.integers(3, 500, 64).tolist() for _ in range(prompts)]
        asked = [texts[index // replies] for index in range(prompts * replies)]

        def emit(header, arrays):
            if header.get("event") == "sample":
                samples[header["request"]] = arrays["tokens"].tolist()

        def fail(_, error):
            raise error

        batch = Sampler(model.device, len(asked), PackedBatch, lambda: None, emit, fail)
        batch.add(1, policy, [Request(text, Draw(), new, frozenset(), (), index) for index, text in enumerate(asked)], False)
        while batch.busy:
            batch.step()
        place.wait()
        spent["sampling"] = time.perf_counter() - begin
        rewards = np.array([np.mean(np.array(samples[index]) % 2) for index in range(len(asked))]).reshape(prompts, replies)
        advantages = ((rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-6)).flatten()
        whole = [text + samples[index] for index, text in enumerate(asked)]
        flags = [[0] * (len(text) - 1) + [1] * new for text in asked]
        offsets = np.cumsum([0, *map(len, whole)])
        sequences = Sequences(np.concatenate(whole).astype(np.int32), offsets, np.concatenate(flags).astype(np.uint8))

        def ask(indices, _outputs):
            # The gradient of the plain policy gradient: with one step per batch all ratios are 1.
            weights = np.repeat(-advantages[indices] / (len(asked) * new), new)
            return {"logprobs": torch.from_numpy(weights.astype(np.float32))}

        engine.forward_backward(policy, sequences, ["logprobs"], ask)
        policy.optim_step(ADAM)
        policy.publish()

    seconds = place.seconds(step, 2)
    return {"s per step": round(seconds, 2), "of that sampling": round(spent["sampling"], 2)}


def trl_step(name: str, prompts: int, replies: int, new: int) -> dict:
    from make_tiny_model import make_tokenizer

    folder = Path(mkdtemp())
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config_of(name), dtype=torch.bfloat16).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": "x" * 40, "answer": index}) + "\n" for index in range(3 * prompts)))
    sizes = {"new-tokens": new, "samples": replies, "prompts-per-step": prompts, "micro-batch": min(32, prompts * replies), "steps": 3}
    command = [sys.executable, str(ROOT / "bench/grpo-step/peer_trl.py"), "--model", str(folder), "--prompts", str(data)]
    done = subprocess.run([*command, *(f"--{key}={value}" for key, value in sizes.items())], capture_output=True, text=True, check=True)
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"step"')][1:]
    return {"s per step": round(min(step["seconds"] for step in steps), 2), "of that sampling": round(min(step["sampling"] for step in steps), 2)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    place = Place(options.small)
    if not options.small and not torch.cuda.is_available():
        sys.exit("no CUDA device was found; --small runs on the CPU")
    if place.on_gpu:
        torch.set_float32_matmul_precision("high")
    machine = {
        "device": torch.cuda.get_device_name() if place.on_gpu else f"no GPU ({place.name})",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    print(json.dumps({"part": "machine", "what": "", "values": machine}), flush=True)
    small = [(LORA, 96), (FULL, 96)]
    {
        "attention": lambda: attention(place),
        "trainer-small": lambda: trainer(
            place,
            "tiny" if place.small else "Qwen3-0.6B",
            small if place.small else [(LORA, 16384), (FULL, 16384), (LORA, 65536), (FULL, 65536)],
        ),
        "trainer-large": lambda: trainer(
            place, "tiny" if place.small else "Qwen3-4B", small[:1] if place.small else [(LORA, 16384), (FULL, 16384), (LORA, 65536)]
        ),
        "sampler": lambda: sampler(place),
        "grpo": lambda: grpo(place),
    }[options.part]()


if __name__ == "__main__":
    main()
