/** The parts of a model's input, in protobuf (training data) and in JSON (prompts). */
import { z } from "zod";
import { bytesOf, int32sOf } from "./tensors.ts";

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

export interface ChunkMessage {
  chunk?: "encoded_text" | "image" | "dmel";
  encoded_text?: { tokens?: Uint8Array };
  image?: { data?: Uint8Array; format?: string; expected_tokens?: number; override_dimensions?: object };
}

export function decodeChunk({ chunk, encoded_text: text, image }: ChunkMessage): InputChunk {
  if (chunk === "encoded_text") return { kind: "text", tokens: int32sOf(text?.tokens) };
  if (chunk !== "image" || !image) return { kind: "other", name: chunk ?? "unknown" };
  if (image.override_dimensions) return { kind: "other", name: "image with override_dimensions" };
  const { data = new Uint8Array(0), format, expected_tokens: expectedTokens } = image;
  return { kind: "image", data, format, expectedTokens };
}

export function encodeChunk(chunk: InputChunk): ChunkMessage {
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
