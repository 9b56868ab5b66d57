/** The model and the counters that a worker reports. */
import type { ModelInfo } from "../engine.ts";
import type { Connection } from "./connection.ts";
import { readNumber } from "./frames.ts";

export interface WorkerModel extends Pick<ModelInfo, "directory" | "architecture" | "dtype" | "device" | "attention"> {
  parameters: number;
  vocabulary_size: number;
  max_length: number;
  eos_token_ids: number[];
  attention_reason?: string | null;
  /** Null if images are not supported; `images_reason` then has the reason, if the model has a vision part. */
  images?: { placeholder: string; placeholder_id: number } | null;
  images_reason?: string | null;
  /** Mean and standard deviation of a reward model's scores. */
  score_moments?: [mean: number, std: number] | null;
}

export function modelInfo(name: string, info: WorkerModel): ModelInfo {
  const { vocabulary_size: vocabularySize, max_length: maxLength, eos_token_ids: eosTokenIds, ...rest } = info;
  const { attention_reason: attentionReason, score_moments: _, images: __, images_reason: ___, ...own } = rest;
  const model = { ...own, name, vocabularySize, maxLength, eosTokenIds };
  return attentionReason ? { ...model, attentionReason } : model;
}

/** What the model reports about images; the placeholder is absent if it does not support them. */
export const imagesOf = ({ images, images_reason: reason }: WorkerModel) => ({
  placeholder: images ? { text: images.placeholder, id: images.placeholder_id } : undefined,
  reason: reason ?? undefined,
});

export async function workerStats(connection: Connection): Promise<Record<string, number>> {
  const { header } = await connection.request("stats").answer;
  const entries = Object.entries(header.stats as Record<string, unknown>);
  return Object.fromEntries(entries.map(([name, value]) => [name, readNumber(value)]));
}
