import { expect, test } from "vitest";
import {
  decodeForwardBackwardOutput,
  decodeForwardBackwardRequest,
  decodeSampleResponse,
  encodeForwardBackwardOutput,
  encodeForwardBackwardRequest,
  encodeSampleResponse,
} from "./messages.ts";
import { decodeTensor, dtypes, int64Bytes } from "./tensors.ts";

test("a request is decoded as it was encoded, with any settings of its loss", () => {
  const request = {
    modelId: "s:train:0",
    seqId: 7,
    data: [
      {
        input: [
          { kind: "text" as const, tokens: Int32Array.of(1, 2) },
          { kind: "text" as const, tokens: Int32Array.of(3) },
        ],
        lossInputs: {
          target_tokens: { dtype: "int64" as const, values: Float64Array.of(2, 3, 4), shape: [3] },
          weights: { dtype: "float32" as const, values: Float32Array.of(0, -1.5, 0.25), shape: [3] },
        },
      },
    ],
    lossFn: "custom",
    lossConfig: { loss_id: "x", beta: 0.5 },
    forwardOnly: true,
  };
  expect(decodeForwardBackwardRequest(encodeForwardBackwardRequest(request)).content()).toEqual(request);
});

test("the bytes of a small request are those of the protocol's definition", () => {
  const bytes = encodeForwardBackwardRequest({
    modelId: "m",
    seqId: 1,
    data: [{ input: [{ kind: "text", tokens: Int32Array.of(258) }], lossInputs: {} }],
    lossFn: "ppo",
    lossConfig: {},
    forwardOnly: false,
  });
  // model_id "m" | seq_id 1 | data { model_input { encoded_text { tokens 0x02010000 } } } | loss_fn "ppo"; false is left out
  const expected = "0a016d 1001 1a0a 0a08 0a06 0a04 02010000 220370706f";
  expect(Buffer.from(bytes).toString("hex")).toBe(expected.replaceAll(" ", ""));
});

test("images are those of the protocol's definition; one of another size is named", () => {
  const image = { kind: "image" as const, data: Buffer.of(7), format: "png", expectedTokens: 3 };
  const request = { modelId: "m", seqId: 1, lossFn: "ppo", lossConfig: {}, forwardOnly: false };
  const bytes = encodeForwardBackwardRequest({ ...request, data: [{ input: [image], lossInputs: {} }] });
  // data { model_input { image { data 0x07 | format "png" | expected_tokens 3 } } }
  const expected = "0a016d 1001 1a0e 0a0c 120a 0a0107 1203706e67 1803 220370706f".replaceAll(" ", "");
  expect(Buffer.from(bytes).toString("hex")).toBe(expected);
  expect(decodeForwardBackwardRequest(bytes).content().data[0]?.input).toEqual([image]);
  // override_dimensions {}
  const resized = Buffer.from("0a016d 1001 1a10 0a0e 120c 0a0107 1203706e67 1803 2200".replaceAll(" ", ""), "hex");
  const [chunk] = decodeForwardBackwardRequest(resized).content().data[0]!.input;
  expect(chunk).toEqual({ kind: "other", name: "image with override_dimensions" });
});

test("a request with broken data still has its model and sequence id", () => {
  const broken = encodeForwardBackwardRequest({
    modelId: "s:train:0",
    seqId: 3,
    data: [{ input: [], lossInputs: { weights: { dtype: "float32", values: Float32Array.of(1), shape: [2] } } }],
    lossFn: "cross_entropy",
    lossConfig: {},
    forwardOnly: false,
  });
  const { modelId, seqId, content } = decodeForwardBackwardRequest(broken);
  expect([modelId, seqId]).toEqual(["s:train:0", 3]);
  expect(content).toThrow(/1 elements cannot have the shape \[2\]/);
});

test("cells that a sparse tensor does not list are zero", () => {
  const tensor = decodeTensor({
    sparse_csr: {
      values: int64Bytes([5, 6, 7]),
      crow_indices: int64Bytes([0, 2, 2, 3]),
      col_indices: int64Bytes([0, 2, 1]),
    },
    dtype: dtypes.int64,
    shape: [3, 3],
  });
  expect([...tensor.values]).toEqual([5, 0, 6, 0, 0, 0, 0, 7, 0]);
  const wrong = { values: int64Bytes([5]), crow_indices: int64Bytes([0, 1]), col_indices: int64Bytes([3]) };
  expect(() => decodeTensor({ sparse_csr: wrong, dtype: dtypes.int64, shape: [1, 3] })).toThrow(/column 3/);
});

test("bfloat16 is widened exactly", () => {
  const halves = Uint16Array.of(0x3f80, 0xc000, 0x3e80);
  const { values } = decodeTensor({ dense: new Uint8Array(halves.buffer), dtype: dtypes.bfloat16, shape: [3] });
  expect([...values]).toEqual([1, -2, 0.25]);
});

test("outputs of several shapes keep their order", () => {
  const outputs = [
    { logprobs: Float32Array.of(-1, -2), trailingShape: [] },
    { logprobs: Float32Array.of(-3, -4, -5, -6), trailingShape: [2] },
    { logprobs: new Float32Array(0), trailingShape: [] },
  ];
  const metrics = { "loss:sum": 1.5 };
  expect(decodeForwardBackwardOutput(encodeForwardBackwardOutput({ outputs, metrics }))).toEqual({ outputs, metrics });
});

test("a sample is decoded as it was encoded", () => {
  const response = {
    sequences: [
      {
        stopReason: "length" as const,
        tokens: Int32Array.of(4, 5),
        logprobs: Float32Array.of(-0.5, -1),
        top: { tokens: Int32Array.of(4, 5), logprobs: Float32Array.of(-0.5, -1), k: 1, length: 2 },
      },
      { stopReason: "stop" as const, tokens: Int32Array.of(0), logprobs: Float32Array.of(-2) },
    ],
    promptLogprobs: Float32Array.of(Number.NaN, -3),
  };
  expect(decodeSampleResponse(encodeSampleResponse(response))).toEqual(response);
});
