"""TRL's GRPOTrainer on the benchmark's model, prompts and batch. Prints one JSON line a step and a summary line.

Sampling and training are timed at the trainer's own seams: everything that makes the batch
(`_generate_and_score_completions`) is sampling, the rest of a step is training.
"""
import argparse
import json
import resource
import sys
import tempfile
import time

import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", required=True, help="jsonl file of {prompt, answer}")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations: leaner and slower")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompts-per-step", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    rows = [json.loads(line) for line in open(options.prompts, encoding="utf8")]
    table = InMemoryTable.from_pylist(
        [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in rows]
    )
    data = Dataset(table, fingerprint="bench")  # computing a fingerprint fails with some versions of pyarrow

    def reward(completions, answer, **_):
        scores = []
        for completion, expected in zip(completions, answer):
            digits = ""
            for character in completion[0]["content"]:
                if character.isdigit():
                    digits += character
                elif digits:
                    break
            scores.append(float(digits != "" and int(digits) == expected))
        return scores

    spent = {"sampling": 0.0}
    inner = GRPOTrainer._generate_and_score_completions

    def timed(self, inputs):
        start = time.perf_counter()
        try:
            return inner(self, inputs)
        finally:
            spent["sampling"] += time.perf_counter() - start

    GRPOTrainer._generate_and_score_completions = timed

    class Clock(TrainerCallback):
        start = 0.0

        def on_step_begin(self, *_, **__):
            Clock.start = time.perf_counter()
            spent["sampling"] = 0.0

        def on_step_end(self, args, state, control, **__):
            total = time.perf_counter() - Clock.start
            line = {"step": state.global_step, "seconds": total, "sampling": spent["sampling"]}
            print(json.dumps(line), flush=True)

    batch = options.prompts_per_step * options.samples
    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(options.model),
            reward_funcs=reward,
            train_dataset=data,
            peft_config=LoraConfig(
                r=32,
                lora_alpha=32,
                target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            ),
            args=GRPOConfig(
                output_dir=output,
                per_device_train_batch_size=options.micro_batch,
                gradient_accumulation_steps=batch // options.micro_batch,
                num_generations=options.samples,
                max_completion_length=options.new_tokens,
                max_steps=options.steps,
                learning_rate=1e-4,
                lr_scheduler_type="constant",
                beta=0.0,
                bf16=options.dtype == "bfloat16",
                use_cpu=not on_gpu,
                gradient_checkpointing=options.checkpointing,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                seed=0,
                disable_tqdm=True,
            ),
            callbacks=[Clock()],
        )
        trainer.train()
        rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    device = torch.cuda.max_memory_allocated() if on_gpu else 0
    print(json.dumps({"peak_bytes": peak, "peak_device_bytes": device, "rewards": rewards}), flush=True)


if __name__ == "__main__":
    main()
