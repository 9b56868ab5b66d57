/**
 * Tinker's binary messages, package `tinker_public`, as SDK 0.38.0 uses them. Only fields that Hone reads or writes are
 * listed; decoding skips others.
 */
import protobuf from "protobufjs";
import { z } from "zod";
import {
  bytesOf,
  decodeTensor,
  dtypes,
  encodeTensor,
  float32sOf,
  int32sOf,
  int64Bytes,
  int64sOf,
  type Tensor,
  type TensorMessage,
} from "./tensors.ts";

const definitions = `
syntax = "proto3";
package tinker_public;

enum DType { DTYPE_UNSPECIFIED = 0; DTYPE_FLOAT32 = 1; DTYPE_INT64 = 2; DTYPE_INT32 = 3; DTYPE_BFLOAT16 = 4; }
enum StopReason { STOP_REASON_STOP = 0; STOP_REASON_LENGTH = 1; }

message SparseCsr { bytes values = 1; bytes crow_indices = 2; bytes col_indices = 3; }
message Tensor {
  oneof encoding { bytes dense = 1; SparseCsr sparse_csr = 2; }
  DType dtype = 3;
  repeated int64 shape = 4;
}

message EncodedTextChunk { bytes tokens = 1; }
message ImageDimensions {}
message ImageChunk {
  bytes data = 1;
  string format = 2;
  optional int32 expected_tokens = 3;
  optional ImageDimensions override_dimensions = 4;
}
message DmelChunk { bytes dmel = 1; }
message Chunk { oneof chunk { EncodedTextChunk encoded_text = 1; ImageChunk image = 2; DmelChunk dmel = 3; } }
message Datum { repeated Chunk model_input = 1; map<string, Tensor> loss_fn_inputs = 2; }
message LossConfigValue { oneof value { double number = 1; string text = 2; } }
message ForwardBackwardRequest {
  string model_id = 1;
  int32 seq_id = 2;
  repeated Datum data = 3;
  string loss_fn = 4;
  map<string, double> loss_fn_config = 5;
  bool forward_only = 6;
  map<string, LossConfigValue> loss_fn_config_v2 = 7;
}

message BatchedTensor { bytes data = 1; bytes offsets = 2; DType dtype = 3; repeated int64 trailing_shape = 4; }
message ArrayRecord { string type_tag = 1; map<string, BatchedTensor> fields = 2; int64 num_datums = 3; }
message ForwardBackwardOutput {
  string loss_fn_output_type = 1;
  repeated ArrayRecord loss_fn_outputs = 2;
  map<string, double> metrics = 3;
}

message TopkLogprobs { bytes token_ids = 1; bytes logprobs = 2; uint32 k = 3; uint32 length = 4; }
message SampledSequence {
  StopReason stop_reason = 1;
  bytes tokens = 2;
  optional bytes logprobs = 3;
  optional TopkLogprobs topk_sampled_logprobs = 4;
}
message PromptAltTokens { Tensor tokens = 1; Tensor logprobs = 2; }
message SampleResponse {
  repeated SampledSequence sequences = 1;
  optional bytes prompt_logprobs = 2;
  optional TopkLogprobs topk_prompt_logprobs = 3;
  int32 prompt_cache_hit_tokens = 4;
  optional Tensor target_prompt_logprobs = 5;
  optional PromptAltTokens prompt_alt_tokens = 6;
}`;

const { root } = protobuf.parse(definitions, { keepCase: true });

/** The version of the official client that has these messages. A service may choose its answers by this version. */
export const sdkVersion = "0.38.0";

/** A message by its name in the definitions above. */
export const message = (name: string): protobuf.Type => root.lookupType(`tinker_public.${name}`);

/** Decoding gives plain objects; 64-bit integers as numbers (shapes and counts are far below 2^53). */
export const toPlain: protobuf.IConversionOptions = { longs: Number, oneofs: true };

// The parts of a model's input, in protobuf (training data) and in JSON (prompts).

interface ImageFacts {
  /** `png` or `jpeg`. */
  format?: string | undefined;
  /** The number of tokens that the client counts for the image. */
  expectedTokens?: number | null | undefined;
}

/** A part of an input. Audio and unknown parts have only their name. */
export type InputChunk =
  | { kind: "text"; tokens: Int32Array }
  | (ImageFacts & { kind: "image"; data: Uint8Array })
  | (ImageFacts & { kind: "image_asset_pointer"; location: string })
  | { kind: "other"; name: string };

interface ChunkMessage {
  chunk?: "encoded_text" | "image" | "dmel";
  encoded_text?: { tokens?: Uint8Array };
  image?: { data?: Uint8Array; format?: string; expected_tokens?: number; override_dimensions?: object };
}

function decodeChunk({ chunk, encoded_text: text, image }: ChunkMessage): InputChunk {
  if (chunk === "encoded_text") return { kind: "text", tokens: int32sOf(text?.tokens) };
  if (chunk !== "image" || !image) return { kind: "other", name: chunk ?? "unknown" };
  if (image.override_dimensions) return { kind: "other", name: "image with override_dimensions" };
  const { data = new Uint8Array(0), format, expected_tokens: expectedTokens } = image;
  return { kind: "image", data, format, expectedTokens };
}

function encodeChunk(chunk: InputChunk): ChunkMessage {
  if (chunk.kind === "text") return { encoded_text: { tokens: bytesOf(chunk.tokens) } };
  if (chunk.kind !== "image") return {};
  const { data, format = "", expectedTokens } = chunk;
  return {
    image: { data, format, ...(typeof expectedTokens === "number" ? { expected_tokens: expectedTokens } : {}) },
  };
}

/** Reads a chunk of JSON. */
export const jsonChunk = z
  .looseObject({
    type: z.string().default("encoded_text"),
    tokens: z.array(z.int()).default([]),
    data: z.base64().default(""),
    location: z.string().default(""),
    format: z.enum(["png", "jpeg"]).optional(),
    expected_tokens: z.int().nullish(),
  })
  .transform(({ type, tokens, data, location, format, expected_tokens: expectedTokens }): InputChunk => {
    if (type === "encoded_text") return { kind: "text", tokens: Int32Array.from(tokens) };
    if (type === "image") return { kind: type, data: Buffer.from(data, "base64"), format, expectedTokens };
    if (type === "image_asset_pointer") return { kind: type, location, format, expectedTokens };
    return { kind: "other", name: type };
  });

export function chunkToJson(chunk: InputChunk): Record<string, unknown> {
  if (chunk.kind === "text") return { type: "encoded_text", tokens: Array.from(chunk.tokens) };
  if (chunk.kind !== "image") throw new Error(`a chunk of kind ${chunk.kind} cannot be sent`);
  const { data, format, expectedTokens } = chunk;
  return { type: "image", data: Buffer.from(data).toString("base64"), format, expected_tokens: expectedTokens };
}

// The messages of forward and forward_backward, as plain values.

export interface Datum {
  input: InputChunk[];
  lossInputs: Record<string, Tensor>;
}

export interface ForwardBackwardRequest {
  modelId: string;
  seqId: number;
  data: Datum[];
  lossFn: string;
  lossConfig: Record<string, number | string>;
  forwardOnly: boolean;
}

/** The log-probabilities of one datum: `[N]`, or `[N, K]` row by row. */
export interface DatumOutput {
  logprobs: Float32Array;
  /** `[]` or `[K]` */
  trailingShape: number[];
}

export interface ForwardBackwardOutput {
  outputs: DatumOutput[];
  /** By `name:reduction`. */
  metrics: Record<string, number>;
}

interface RequestMessage {
  model_id?: string;
  seq_id?: number;
  data?: { model_input?: ChunkMessage[]; loss_fn_inputs?: Record<string, TensorMessage> }[];
  loss_fn?: string;
  loss_fn_config?: Record<string, number>;
  forward_only?: boolean;
  loss_fn_config_v2?: Record<string, { number?: number; text?: string }>;
}
interface OutputMessage {
  loss_fn_outputs?: {
    fields?: Record<string, { data?: Uint8Array; offsets?: Uint8Array; trailing_shape?: number[] }>;
  }[];
  metrics?: Record<string, number>;
}

const requestType = message("ForwardBackwardRequest");
const outputType = message("ForwardBackwardOutput");

/** `content` throws where the data are broken; the other fields are readable even then. */
export function decodeForwardBackwardRequest(bytes: Uint8Array) {
  const plain = requestType.toObject(requestType.decode(bytes), toPlain) as RequestMessage;
  const { model_id: modelId = "", seq_id: seqId = 0, forward_only: forwardOnly = false, data = [] } = plain;
  const content = (): ForwardBackwardRequest => ({ modelId, seqId, forwardOnly, ...contentOf(plain) });
  return { modelId, seqId, forwardOnly, datums: data.length, content };
}

function contentOf(plain: RequestMessage): Pick<ForwardBackwardRequest, "data" | "lossFn" | "lossConfig"> {
  const second = Object.entries(plain.loss_fn_config_v2 ?? {}).map(([key, { number, text }]) => [
    key,
    text ?? number ?? 0,
  ]);
  return {
    data: (plain.data ?? []).map(({ model_input = [], loss_fn_inputs = {} }) => ({
      input: model_input.map(decodeChunk),
      lossInputs: Object.fromEntries(Object.entries(loss_fn_inputs).map(([key, value]) => [key, decodeTensor(value)])),
    })),
    lossFn: plain.loss_fn ?? "",
    lossConfig: second.length > 0 ? Object.fromEntries(second) : (plain.loss_fn_config ?? {}),
  };
}

export function encodeForwardBackwardRequest(request: ForwardBackwardRequest): Uint8Array {
  const { modelId, seqId, data, lossFn, lossConfig, forwardOnly } = request;
  const config = Object.entries(lossConfig);
  const numbers = config.filter((entry): entry is [string, number] => typeof entry[1] === "number");
  const plain: RequestMessage = {
    model_id: modelId,
    seq_id: seqId,
    data: data.map(({ input, lossInputs }) => ({
      model_input: input.map(encodeChunk),
      loss_fn_inputs: Object.fromEntries(Object.entries(lossInputs).map(([key, value]) => [key, encodeTensor(value)])),
    })),
    loss_fn: lossFn,
    loss_fn_config: Object.fromEntries(numbers),
    forward_only: forwardOnly,
    loss_fn_config_v2: Object.fromEntries(
      config.map(([key, value]) => [key, typeof value === "number" ? { number: value } : { text: value }]),
    ),
  };
  return requestType.encode(requestType.create(plain)).finish();
}

/** Datums of one trailing shape share a record. */
export function encodeForwardBackwardOutput({ outputs, metrics }: ForwardBackwardOutput): Uint8Array {
  const records: DatumOutput[][] = [];
  for (const output of outputs) {
    const last = records.at(-1);
    if (last?.[0]?.trailingShape.join() === output.trailingShape.join()) last.push(output);
    else records.push([output]);
  }
  const plain = {
    loss_fn_output_type: "ArrayRecord",
    loss_fn_outputs: records.map((members) => ({
      type_tag: "ArrayRecord",
      fields: { logprobs: batched(members) },
      num_datums: members.length,
    })),
    metrics,
  };
  return outputType.encode(outputType.create(plain)).finish();
}

function batched(members: readonly DatumOutput[]) {
  const data = new Float32Array(members.reduce((total, { logprobs }) => total + logprobs.length, 0));
  const offsets = [0];
  let position = 0;
  for (const { logprobs } of members) {
    data.set(logprobs, position);
    position += logprobs.length;
    offsets.push(4 * position);
  }
  const trailing_shape = members[0]?.trailingShape ?? [];
  return { data: bytesOf(data), offsets: int64Bytes(offsets), dtype: dtypes.float32, trailing_shape };
}

export function decodeForwardBackwardOutput(bytes: Uint8Array): ForwardBackwardOutput {
  const plain = outputType.toObject(outputType.decode(bytes), toPlain) as OutputMessage;
  const outputs = (plain.loss_fn_outputs ?? []).flatMap(({ fields }): DatumOutput[] => {
    const field = fields?.logprobs;
    if (!field) return [];
    const values = float32sOf(field.data);
    const starts = int64sOf(field.offsets).map((bytes) => bytes / 4);
    return Array.from(starts.subarray(1), (end, index) => ({
      logprobs: values.slice(starts[index], end),
      trailingShape: field.trailing_shape ?? [],
    }));
  });
  return { outputs, metrics: plain.metrics ?? {} };
}

// The message of a finished sample request, as plain values.

/** `[length, k]` row by row; empty cells are token 0 with `emptyLogprob`. */
export interface TopLogprobs {
  tokens: Int32Array;
  logprobs: Float32Array;
  k: number;
  length: number;
}

export const emptyLogprob = -99999;

interface SampledSequence {
  stopReason: "stop" | "length";
  tokens: Int32Array;
  logprobs: Float32Array;
  top?: TopLogprobs | undefined;
}

export interface SampleResponse {
  sequences: SampledSequence[];
  /** `[P]`, NaN where there is none. */
  promptLogprobs?: Float32Array | undefined;
  topPromptLogprobs?: TopLogprobs | undefined;
  /** `[P - 1, K]`, in the layout of the request. */
  targetPromptLogprobs?: TensorMessage | undefined;
  /** `[P - 1, K]` each. */
  promptAltTokens?: { tokens: TensorMessage; logprobs: TensorMessage } | undefined;
}

interface TopMessage {
  token_ids?: Uint8Array;
  logprobs?: Uint8Array;
  k?: number;
  length?: number;
}
interface ResponseMessage {
  sequences?: {
    stop_reason?: number;
    tokens?: Uint8Array;
    logprobs?: Uint8Array;
    topk_sampled_logprobs?: TopMessage;
  }[];
  prompt_logprobs?: Uint8Array;
  topk_prompt_logprobs?: TopMessage;
}

const responseType = message("SampleResponse");
const stopReasons = ["stop", "length"] as const;

const encodeTop = ({ tokens, logprobs, k, length }: TopLogprobs): TopMessage => ({
  token_ids: bytesOf(tokens),
  logprobs: bytesOf(logprobs),
  k,
  length,
});

export function encodeSampleResponse(response: SampleResponse): Uint8Array {
  const { sequences, promptLogprobs, topPromptLogprobs, targetPromptLogprobs, promptAltTokens } = response;
  const plain = {
    sequences: sequences.map(({ stopReason, tokens, logprobs, top }) => ({
      stop_reason: stopReasons.indexOf(stopReason),
      tokens: bytesOf(tokens),
      logprobs: bytesOf(logprobs),
      topk_sampled_logprobs: top && encodeTop(top),
    })),
    prompt_logprobs: promptLogprobs && bytesOf(promptLogprobs),
    topk_prompt_logprobs: topPromptLogprobs && encodeTop(topPromptLogprobs),
    target_prompt_logprobs: targetPromptLogprobs,
    prompt_alt_tokens: promptAltTokens,
  };
  return responseType.encode(responseType.create(plain)).finish();
}

const decodeTop = ({ token_ids, logprobs, k = 0, length = 0 }: TopMessage): TopLogprobs => ({
  tokens: int32sOf(token_ids),
  logprobs: float32sOf(logprobs),
  k,
  length,
});

/** Decodes the parts that an engine requests: sequences and the prompt's log-probabilities. */
export function decodeSampleResponse(bytes: Uint8Array): SampleResponse {
  const plain = responseType.toObject(responseType.decode(bytes), toPlain) as ResponseMessage;
  return {
    sequences: (plain.sequences ?? []).map(({ stop_reason = 0, tokens, logprobs, topk_sampled_logprobs }) => ({
      stopReason: stopReasons[stop_reason] ?? "stop",
      tokens: int32sOf(tokens),
      logprobs: float32sOf(logprobs),
      top: topk_sampled_logprobs && decodeTop(topk_sampled_logprobs),
    })),
    promptLogprobs: plain.prompt_logprobs && float32sOf(plain.prompt_logprobs),
    topPromptLogprobs: plain.topk_prompt_logprobs && decodeTop(plain.topk_prompt_logprobs),
  };
}
