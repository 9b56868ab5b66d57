import { fileURLToPath } from "node:url";
import { defineExperiment, openDataset } from "hone-rl";
import { openaiRft } from "hone-rl/openai-rft";

const file = (name: string) => fileURLToPath(new URL(name, import.meta.url));

/** Written by `hone import rft job.json train.jsonl`. */
export default defineExperiment({
  ...openaiRft({
    train: await openDataset(file("./train.jsonl")),
    grader: {
      type: "multi",
      graders: {
        exact: {
          type: "string_check",
          name: "exact",
          input: "{{ sample.output_text }}",
          reference: "{{ item.answer }}",
          operation: "ilike",
        },
        close: {
          type: "text_similarity",
          name: "close",
          input: "{{ sample.output_text }}",
          reference: "{{ item.answer }}",
          evaluation_metric: "fuzzy_match",
        },
      },
      calculate_output: "0.7 * exact + 0.3 * close",
    },
  }),
  config: {
    training: { learning_rate: 3e-4 },
    data: { train_batch_size: 8, max_prompt_length: 128, max_response_length: 16 },
    rllm: { trainer: { experiment_name: "{{name}}", total_epochs: 4 } },
  },
});
