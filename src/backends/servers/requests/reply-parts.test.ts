import { expect, test } from "vitest";
import { joinRouting } from "../../../trajectories/routing.ts";
import type { SampleRequest } from "../../engine.ts";
import { continuedRequest, joinReplies } from "./reply-parts.ts";

const params = { maxTokens: 9, seed: 1 } as SampleRequest["params"];
const request: SampleRequest = { prompt: Int32Array.of(5, 6), params, routingFrom: 0 };
const part = (tokens: number[], experts?: string) => ({
  tokens: Int32Array.from(tokens),
  logprobs: new Float32Array(tokens.length),
  ...{ stopReason: undefined, versions: undefined },
  ...(experts === undefined ? {} : { routing: [{ first: 0, npy: npy(experts) }] }),
});

/** Of a model with one layer and one expert for each token. */
function npy(experts: string): string {
  const header = `{'descr': '|u1', 'fortran_order': False, 'shape': (${experts.length}, 1, 1), }`;
  const size = Buffer.from([header.length, 0]);
  return Buffer.concat([
    Buffer.from("\x93NUMPY\x01\0", "latin1"),
    size,
    Buffer.from(header + experts, "latin1"),
  ]).toString("base64");
}

test("the rest of a reply that was ended early is sampled after its tokens, and experts are asked from the same one", () => {
  const rest = continuedRequest(request, [part([7, 8]), part([9])]);
  expect(rest).toMatchObject({ prompt: Int32Array.of(5, 6, 7, 8, 9), params: { maxTokens: 6 }, routingFrom: 0 });
  expect(rest.params.seed).not.toBe(params.seed);
});

test.each([
  ["those that sampled", "\x01\x02\x03", [1, 2, 3, 8]],
  ["those of the next part if the server did not tell them", undefined, [9, 9, 9, 8]],
])("a reply in parts has the experts: %s", (_, sampled, expected) => {
  const { tokens, routing } = joinReplies([part([7, 8], sampled), part([4], "\x09\x09\x09\x08")]);
  expect(tokens).toEqual(Int32Array.of(7, 8, 4));
  expect([...joinRouting(routing!, 5)!.experts]).toEqual(expected);
});
