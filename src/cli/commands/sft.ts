/** `hone sft`: fine-tunes a model on the rows of a file. */
import type { Command } from "commander";
import { sft } from "../../supervised/sft.ts";
import { registerLearning } from "../learn-from-data.ts";

export function register(command: Command): void {
  registerLearning(command, sft, {
    data: "rows: a .jsonl or .parquet file, or hub:organization/name",
    help: `
A row is a conversation (messages with tools, or ShareGPT's conversations), a
prompt and a completion, an instruction (Alpaca), text, or input_ids. With an
experiment's script, its validation tasks are attempted as in hone train.

Examples:
  hone sft rows.jsonl model.name=./my-model
  hone sft rows.jsonl data.val_files=held-out.jsonl sft.train_on=last_assistant_message
  hone sft rows.jsonl ./train.ts training.learning_rate=2e-4
  hone sft --resume runs/latest`,
  });
}
