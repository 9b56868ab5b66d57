"""Losses and gradient norms of TRL's SFTTrainer and DPOTrainer on a tiny model, for src/supervised/sft.trl.e2e.ts.

Needs the packages of worker/requirements-dev.lock and worker/requirements-trl.lock:

    python worker/tests/make_tiny_model.py MODEL 0 8
    python scripts/proofs/recorders/trl-trainers.py MODEL src/supervised/trl.fixture.json

Rows are tokenized by TRL from the fixture's own text, except those with input_ids and labels.
"""

import json
import sys
import tempfile
from importlib.metadata import version

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

MODEL = sys.argv[1]
BATCH, STEPS = 4, 3
ADAM = {
    "learning_rate": 3e-3,
    "lr_scheduler_type": "constant",
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
}

TEXTS = [f"{word} {number}" for number, word in enumerate(["red", "a green one", "blue", "white or black"] * 3)]


def chat(index, reply):
    return [{"role": "user", "content": f"color {index}?"}, {"role": "assistant", "content": reply}]


def conversations(tokenizer):
    """What Hone's `messages` teach: the reply up to the end of its turn, without the line break after it."""
    for index, text in enumerate(TEXTS):
        messages = chat(index, text)
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
        prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=True, return_dict=False)
        end = len(ids) - ids[::-1].index(tokenizer.eos_token_id)
        yield {"input_ids": ids[:end], "labels": [-100] * len(prompt) + ids[len(prompt) : end]}


def labelled(tokenizer):
    """Token ids with labels that leave out the first half and every fifth token."""
    rows = []
    for text in TEXTS:
        ids = tokenizer(text + " " + text)["input_ids"]
        labels = [-100 if at < len(ids) // 2 or at % 5 == 0 else token for at, token in enumerate(ids)]
        rows.append({"input_ids": ids, "labels": labels})
    return rows


class Record(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "grad_norm" in logs:
            self.steps.append({"loss": logs["loss"], "grad_norm": logs["grad_norm"]})


def run(trainer_class, config_class, tokenizer, rows, **options):
    record = Record()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        config = config_class(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            dataloader_drop_last=False,
            seed=0,
            **ADAM,
            **options,
        )
        trainer = trainer_class(
            model=AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[record],
        )
        # In the order of the rows.
        trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(trainer.train_dataset)
        # Logs round losses.
        inner = trainer.compute_loss
        losses = []

        def compute(model, inputs, *args, **kwargs):
            result = inner(model, inputs, *args, **kwargs)
            losses.append((result[0] if isinstance(result, tuple) else result).item())
            return result

        trainer.compute_loss = compute
        trainer.train()
    norms = [float(step["grad_norm"]) for step in record.steps]
    return [{"loss": loss, "gradNorm": norm} for loss, norm in zip(losses, norms, strict=True)]


def main():
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    plain = [{"prompt": f"{index}: ", "completion": text} for index, text in enumerate(TEXTS)]
    pairs = [
        {"prompt": f"{index}: ", "chosen": text, "rejected": text[::-1] + "!"} for index, text in enumerate(TEXTS)
    ]
    sft = [
        ("labels", labelled(tokenizer), None, {}),
        ("labels, dft", labelled(tokenizer), None, {"loss_type": "dft"}),
        ("text", [{"text": text} for text in TEXTS], None, {}),
        ("prompt and completion", plain, None, {}),
        ("messages", [{"messages": chat(*row)} for row in enumerate(TEXTS)], list(conversations(tokenizer)), {}),
    ]
    dpo = [
        ("sigmoid", {"beta": 0.1}),
        ("robust", {"beta": 0.3, "label_smoothing": 0.1}),
        ("ipo", {"beta": 0.1}),
        ("hinge", {"beta": 0.5}),
        ("sigmoid_norm", {"beta": 2.0}),
    ]
    record = {
        "trl": version("trl"),
        "transformers": version("transformers"),
        "torch": version("torch"),
        "adam": ADAM,
        "batch": BATCH,
        "sft": [
            {
                "name": name,
                "rows": rows,
                "lossType": options.get("loss_type", "nll"),
                "steps": run(SFTTrainer, SFTConfig, tokenizer, given or rows, packing=False, **options),
            }
            for name, rows, given, options in sft
        ],
        "dpo": {
            "rows": pairs,
            "runs": [
                {
                    "lossType": name,
                    **options,
                    "steps": run(DPOTrainer, DPOConfig, tokenizer, pairs, loss_type=[name], **options),
                }
                for name, options in dpo
            ],
        },
    }
    with open(sys.argv[2], "w", encoding="utf8") as file:
        json.dump(record, file, indent=1)
        file.write("\n")


main()
