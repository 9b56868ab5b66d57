/** The model writes programs, which run in a sandbox and are graded by the tests that they pass. */
import {
  type CodeTest,
  codeBlock,
  codeTests,
  combine,
  defineExperiment,
  generated,
  openSandbox,
  randomInteger,
  singleTurn,
} from "hone-rl";

interface Row {
  factor: number;
  offset: number;
}

const rules = (name: string, size: number) =>
  generated<Row>(name, size, (_index, random) => ({
    factor: randomInteger(random, 2, 9),
    offset: randomInteger(random, 1, 9),
  }));

const testsOf = ({ factor, offset }: Row): CodeTest[] =>
  [0, 1, 7, -3].map((x) => ({ call: "rule", arguments: [x], returns: factor * x + offset }));

/** Requires full isolation. HONE_SANDBOX=process accepts a process group with limits: see the README. */
const sandbox = await openSandbox({ atLeast: process.env.HONE_SANDBOX === "process" ? "process" : "namespaces" });

export default defineExperiment({
  train: rules("rules", 4096),
  validation: rules("rules-validation", 32),
  workflow: singleTurn({
    prompt: (row) =>
      `Write a Python function rule(x) that gives x times ${row.factor} plus ${row.offset}. ` +
      "Answer with one fenced block of code that begins with ```python.",
    reward: combine<Row>({
      tests: {
        weight: 0.9,
        reward: (row, reply, { signal }) => codeTests(reply.text, testsOf(row), { sandbox, reward: "share", signal }),
      },
      block: { weight: 0.1, reward: (_row, reply) => Number(codeBlock(reply.text) !== undefined) },
    }),
  }),
  config: {
    rllm: {
      trainer: { experiment_name: "code-sandbox", total_batches: 30, test_freq: 10, save_freq: 10 },
    },
    training: { learning_rate: 1e-4 },
    data: { train_batch_size: 4, val_batch_size: 32, max_prompt_length: 256, max_response_length: 96 },
  },
});
