/** The most likely tokens of prompts, as vLLM and SGLang return them. */
import { expect, test } from "vitest";
import type { SampleRequest } from "../../engine.ts";
import { plainParams } from "../../sampling-params.ts";
import { sglang } from "./sglang.ts";
import { vllmCompletions } from "./vllm-completions.ts";
import { vllmGenerate } from "./vllm-generate.ts";

const request: SampleRequest = {
  prompt: Int32Array.of(7, 8),
  params: plainParams,
  promptLogprobs: true,
  topPromptLogprobs: 2,
};
/** The prompt's own token 8 is not among the two most likely ones, so there is a third entry. */
const prompt_logprobs = [
  null,
  { 8: { logprob: -4, rank: 9 }, 5: { logprob: -1.5, rank: 2 }, 3: { logprob: -0.5, rank: 1 } },
];
const expected = [
  { tokens: Int32Array.of(), logprobs: Float32Array.of() },
  { tokens: Int32Array.of(3, 5), logprobs: Float32Array.of(-0.5, -1.5) },
];

test.each([
  [
    vllmGenerate,
    {
      choices: [{ token_ids: [1], logprobs: { content: [{ logprob: -1 }] }, finish_reason: "length" }],
      prompt_logprobs,
    },
  ],
  [
    vllmCompletions,
    { choices: [{ token_ids: [1], logprobs: { token_logprobs: [-1] }, finish_reason: "length", prompt_logprobs }] },
  ],
])("vLLM's $path", (dialect, body) => {
  const asked = dialect.write(request, "model", false, "id");
  expect(JSON.stringify(asked)).toContain('"prompt_logprobs":2');
  const { promptLogprobs, topPromptLogprobs } = dialect.read(body, request);
  expect([...promptLogprobs!]).toEqual([Number.NaN, -4]);
  expect(topPromptLogprobs).toEqual(expected);
});

test("SGLang", () => {
  expect(sglang.write(request, undefined, false, "id")).toMatchObject({ logprob_start_len: 0, top_logprobs_num: 2 });
  const meta_info = {
    output_token_logprobs: [[-1, 1, null]],
    input_token_logprobs: [
      [null, 7, null],
      [-4, 8, null],
    ],
    input_top_logprobs: [
      null,
      [
        [-0.5, 3, null],
        [-1.5, 5, null],
      ],
    ],
    finish_reason: { type: "length" },
  };
  const { promptLogprobs, topPromptLogprobs } = sglang.read({ meta_info }, request);
  expect([...promptLogprobs!]).toEqual([Number.NaN, -4]);
  expect(topPromptLogprobs).toEqual(expected);
});
