/** `hone dpo`: trains a model on the preference pairs of a file. */
import type { Command } from "commander";
import { dpo } from "../../supervised/dpo.ts";
import { registerLearning } from "../learn-from-data.ts";

export function register(command: Command): void {
  registerLearning(command, dpo, {
    data: "pairs: a .jsonl or .parquet file, or hub:organization/name",
    help: `
A pair is TRL's {prompt, chosen, rejected}, as text or messages, or OpenAI's
{input, preferred_output, non_preferred_output}. The reference is the model
before training: the base model, or the run of --from.

Examples:
  hone dpo pairs.jsonl --from runs/latest
  hone dpo pairs.jsonl model.name=./my-model dpo.loss_type=ipo dpo.beta=0.05
  hone dpo --resume runs/latest`,
  });
}
