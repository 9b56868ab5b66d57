/** docs/reference/models.md: the table of model families, from the record of worker/tests/families. */
import { readFileSync } from "node:fs";
import { z } from "zod";

const result = z.union([z.literal(true), z.string()]);
const family = z.strictObject({
  title: z.string(),
  kind: z.string(),
  architecture: z.string(),
  rows: z.enum(["packed", "hybrid", "padded", "none"]),
  reason: z.string().nullable(),
  sampling: result,
  full_gradient: result,
  lora_gradient: result,
  lora_layers: z.array(z.string()),
  merged: result,
  adapter: result,
});
const images = z.strictObject({ title: z.string(), kind: z.string(), images: result });
const byKind = z.record(z.string(), result);
const record = z.strictObject({
  text: z.array(family),
  images: z.array(images),
  grpo: byKind,
  fsdp2: byKind,
  vllm: byKind,
  vllm_version: z.string(),
});
type Family = z.output<typeof family>;

const columns = ["sampling", "full_gradient", "lora_gradient", "merged", "adapter"] as const;

const source = new URL("../../../worker/tests/families/record.json", import.meta.url);

export function modelsPage(): string {
  const { text, images, vllm_version: version, ...measured } = record.parse(JSON.parse(readFileSync(source, "utf8")));
  const packed = text.filter(({ rows }) => rows === "packed").length;
  const hybrid = text.filter(({ rows }) => rows === "hybrid").length;
  const notes: string[] = [];
  const note = (sentence: string): string => {
    const at = notes.indexOf(sentence);
    if (at === -1) notes.push(sentence);
    return `[${(at === -1 ? notes.length : at + 1).toString()}]`;
  };
  const cell = (value: true | string) => (value === true ? "yes" : note(value));
  const row = (one: Family) =>
    [
      one.title,
      `\`${one.kind}\``,
      one.reason === null ? one.rows : `${one.rows} ${note(one.reason)}`,
      ...columns.map((column) => cell(one[column])),
      ...(["grpo", "fsdp2", "vllm"] as const).map((column) => cell(measured[column][one.kind] ?? "not measured")),
    ].join(" | ");
  const textRows = text.map((one) => `| ${row(one)} |`);
  const imageRows = images.map((one) => `| ${one.title} | \`${one.kind}\` | ${cell(one.images)} |`);
  return `# Models
<!-- Generated from worker/tests/families/record.json by \`npm run docs\`: do not edit. -->

The local engine trains and samples any language model of the installed transformers. This page lists ${text.length.toString()} families that were measured, each with a
random model of two to four layers: ${packed.toString()} in packed rows, ${hybrid.toString()} hybrid or recurrent models in packed rows.
[How they are measured](../decisions/models.md).

- **rows**: *packed*: a common prompt is computed once for all of its samples, in sampling and training. *hybrid*: the same, and recurrent or
  convolutional layers keep a state for each sequence. *padded*: transformers' own forward; each sample computes its prompt again.
- **sampling**: greedy samples equal transformers' \`generate\`, and log-probabilities equal a plain forward
- **gradient**, **LoRA**: the gradients of all weights, and of LoRA on attention, feed-forward layers, experts and the output layer, equal
  autograd's
- **merged**, **adapter**: the exports give the same log-probabilities in transformers and PEFT
- **GRPO**: two steps of a run with LoRA: all metrics are finite, the gradient is not zero, and the sampled log-probabilities equal the
  trainer's within 2e-4
- **FSDP2**: with \`local.processes=2\`, log-probabilities and the gradients of LoRA and of all weights equal those of one process
- **vLLM**: the model class of vLLM ${version} loads the adapter of attention and feed-forward layers, and that of the experts, and uses all of
  their layers. Where it does not, train all weights (\`model.lora_rank=0\`), which are published whole, or sample with the local engine

| family | \`model_type\` | rows | sampling | gradient | LoRA | merged | adapter | GRPO | FSDP2 | vLLM |
|---|---|---|---|---|---|---|---|---|---|---|
${textRows.join("\n")}

## Images
Hidden states of rows with an image equal transformers' own forward. Other models with a vision part read only text.

| family | \`model_type\` | images |
|---|---|---|
${imageRows.join("\n")}

## Notes
${notes.map((sentence, at) => `${(at + 1).toString()}. ${sentence}`).join("\n")}

## A family that is not listed
Nothing has to be added to Hone. When a model is loaded, Hone compares packed rows with transformers' own forward, and uses that forward if
they differ; the first line of a run and \`hone doctor\` say so. If the installed transformers does not know the family, a later version is
installed beside it: \`npx hone-rl train ./train.ts model.name=./new-model local.transformers=5.24.0\`. If the model's template does not show how it
thinks and calls tools, [name or describe its format](../guide/reply-formats.md#another-format).
`;
}
