/** Sampling from a bigram table, all sequences of a call in step, one token each. */
import { setImmediate } from "node:timers/promises";
import type { Sample, SampleOptions, SampleRequest } from "../backends/engine.ts";
import { uniforms } from "../random.ts";
import { logProbabilities, type Table } from "./bigram-table.ts";
import type { CharacterChat } from "./character-chat.ts";
import { drawToken, rankTokens } from "./draw-token.ts";

interface Row {
  index: number;
  request: SampleRequest;
  last: number;
  tokens: number[];
  logprobs: number[];
  top: { tokens: Int32Array; logprobs: Float32Array }[];
  uniform: () => number;
}

/** @param table the loaded weights, which must not change while this samples */
export async function* tabularSample(
  table: Table,
  chat: CharacterChat,
  policyVersion: number,
  requests: readonly SampleRequest[],
  { signal, onToken }: SampleOptions = {},
): AsyncGenerator<Sample, void, undefined> {
  const size = chat.vocabularySize;
  let live: Row[] = requests.map((request, index) => ({
    index,
    request,
    last: request.prompt.at(-1)!,
    tokens: [],
    logprobs: [],
    top: [],
    uniform: uniforms(request.params.seed),
  }));
  while (live.length > 0) {
    // An abort can arrive between two tokens.
    await setImmediate();
    const going: Row[] = [];
    for (const row of live) {
      const aborted = signal?.aborted || row.request.signal?.aborted;
      if (!aborted) step(row);
      const stopReason = aborted ? "aborted" : whyStopped(row, chat);
      if (stopReason) yield toSample(row, stopReason);
      else going.push(row);
    }
    live = going;
  }

  function step(row: Row): void {
    const logs = logProbabilities(table, size, row.last);
    const token = drawToken(logs, row.request.params, row.uniform());
    row.last = token;
    row.tokens.push(token);
    const reported = row.request.temperedLogprobs ? tempered(logs, row.request.params.temperature) : logs;
    const logprob = reported[token]!;
    row.logprobs.push(logprob);
    if (row.request.topLogprobs) row.top.push(mostLikely(reported, row.request.topLogprobs));
    onToken?.(row.index, token, Math.fround(logprob));
  }

  function toSample({ index, request, tokens, logprobs, top }: Row, stopReason: Sample["stopReason"]): Sample {
    const sample: Sample = {
      request: index,
      tokens: Int32Array.from(tokens),
      logprobs: Float32Array.from(logprobs),
      stopReason,
      policyVersion,
    };
    if (request.promptLogprobs) sample.promptLogprobs = promptLogprobs(table, size, request.prompt);
    if (request.topLogprobs) sample.topLogprobs = top;
    return sample;
  }
}

function whyStopped({ request: { params }, tokens, last }: Row, chat: CharacterChat): "stop" | "length" | undefined {
  const ended = params.stopIds.includes(last) || (last === chat.eosId && !params.ignoreEos);
  if (ended) return "stop";
  if (params.stopStrings.length > 0) {
    const text = chat.decode(tokens);
    if (params.stopStrings.some((stop) => text.includes(stop))) return "stop";
  }
  return tokens.length >= params.maxTokens ? "length" : undefined;
}

/** Log-probabilities at a temperature; greedy counts as 1. */
function tempered(logs: Float64Array, temperature: number): Float64Array {
  const scaled = temperature === 0 ? logs : logs.map((log) => log / temperature);
  return logProbabilities(scaled, scaled.length, 0);
}

function mostLikely(logs: Float64Array, count: number): { tokens: Int32Array; logprobs: Float32Array } {
  const ranked = rankTokens(logs).slice(0, count);
  return {
    tokens: Int32Array.from(ranked, ({ token }) => token),
    logprobs: Float32Array.from(ranked, ({ log }) => log),
  };
}

const promptLogprobs = (table: Table, size: number, prompt: Int32Array) =>
  Float32Array.from(prompt, (token, position) =>
    position === 0 ? Number.NaN : logProbabilities(table, size, prompt[position - 1]!)[token]!,
  );
