/** The messages of forward and forward_backward, as plain values. */
import { type ChunkMessage, decodeChunk, encodeChunk, type InputChunk } from "./chunks.ts";
import { message, toPlain } from "./schema.ts";
import {
  bytesOf,
  decodeTensor,
  dtypes,
  encodeTensor,
  float32sOf,
  int64Bytes,
  int64sOf,
  type Tensor,
  type TensorMessage,
} from "./tensors.ts";

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
