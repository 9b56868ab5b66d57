/** What a real inference server answered; written by scripts/proofs/upstream-contract/record.ts. */
import type { SampleRequest } from "../engine.ts";

export const recordedServers = {
  /** Without the route for tokens, which vLLM has only with --enable-scale-out. */
  vllm: { kind: "vllm", generates: false },
  "vllm-generate": { kind: "vllm", generates: true },
  sglang: { kind: "sglang", generates: false },
} as const;

export type RecordedServer = keyof typeof recordedServers;

export interface Recording {
  /** Its name and version. */
  server: string;
  recorded: Recorded[];
}

export interface Recorded {
  name: string;
  asked: Omit<SampleRequest, "prompt"> & { prompt: number[] };
  stream: boolean;
  path: string;
  /** What Hone sent, without the request's id. */
  body: Record<string, unknown>;
  status: number;
  /** What came back, word for word. */
  answer: string;
  /** Absent where the server refused. */
  tokens?: number[];
  stopReason?: string;
  /** Log-probabilities of the tokens, by transformers. */
  logprobs?: number[];
  /** Log-probabilities of the prompt's tokens except the first, by transformers; absent if they were not requested. */
  promptLogprobs?: number[];
}
