/** What a real inference server answered; written by scripts/proofs/upstream-contract/record.ts. */
import type { SampleRequest } from "../engine.ts";

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
  /** What Hone sent. */
  body: Record<string, unknown>;
  status: number;
  /** What came back, word for word. */
  answer: string;
  /** Absent where the server refused. */
  tokens?: number[];
  stopReason?: string;
  /** Of the tokens, by transformers. */
  logprobs?: number[];
}
