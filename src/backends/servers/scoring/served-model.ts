/** Finds the model that an inference server serves, and checks that it is the configured reward model. */
import { basename, resolve } from "node:path";
import { z } from "zod";
import { RunError, UserError } from "../../../errors.ts";

export interface ServedScoringModel {
  /** Without `/v1` and without a slash at its end. */
  url: string;
  /** The name of the model in requests. */
  name: string;
  /** The folder or hub id that it was loaded from, if the server reports it. */
  root: string | undefined;
  /** The longest sequence in tokens, if the server reports it. */
  maxLength: number | undefined;
  /** The program, e.g. "vllm" or "sglang". */
  owner: string | undefined;
  /** The headers of requests to the server. */
  headers: Readonly<Record<string, string>>;
}

const modelList = z.object({
  data: z
    .array(
      z.object({
        id: z.string(),
        root: z.string().nullish(),
        max_model_len: z.int().nullish(),
        owned_by: z.string().nullish(),
      }),
    )
    .min(1),
});
const tokenIds = z.object({ tokens: z.array(z.int()) });

/** @throws RunError if the server does not answer; UserError if it is not an inference server */
export async function servedModel(address: string, apiKey: string | undefined): Promise<ServedScoringModel> {
  const url = address.replace(/\/+$/, "").replace(/\/v1$/, "");
  const headers: Record<string, string> = apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` };
  const { data } = await ask(modelList, `${url}/v1/models`, headers);
  const [{ id, root, max_model_len, owned_by }] = data as [(typeof data)[0]];
  return {
    url,
    name: id,
    root: root ?? undefined,
    maxLength: max_model_len ?? undefined,
    owner: owned_by ?? undefined,
    headers,
  };
}

/** Text whose tokens differ between nearly all tokenizers. */
const probe = "Hello  world!\n\tWhat is 12345 + 678.90? ÄÖ ñ 你好 🙂 def f(x):\n    return x**2 # <b>don't</b>";

/**
 * @param encode the tokenizer of the configured reward model, without adding special tokens
 * @throws UserError if the server has a different tokenizer
 */
export async function requireSameTokenizer(
  { url, name, headers }: ServedScoringModel,
  model: string,
  encode: (text: string) => ArrayLike<number>,
): Promise<void> {
  const body = { model: name, prompt: probe, add_special_tokens: false };
  const { tokens } = await ask(tokenIds, `${url}/tokenize`, headers, body);
  if (tokens.join() === Array.from(encode(probe)).join()) return;
  throw new UserError(`the server at ${url} serves ${name}, whose tokenizer is not that of ${model}`, {
    hint: `serve ${model} there, or correct rllm.reward.model`,
  });
}

/**
 * Assigns the servers to the reward models. A single model gets all servers, regardless of the name that they use for it.
 *
 * @throws UserError if a model has no server, or a server has no model
 */
export function assignServers(
  models: readonly string[],
  served: readonly ServedScoringModel[],
): ReadonlyMap<string, readonly ServedScoringModel[]> {
  const assigned = new Map(
    models.map((model) => [model, served.filter((one) => models.length === 1 || serves(one, model))]),
  );
  for (const [model, servers] of assigned) {
    if (servers.length > 0) continue;
    const others = served.map(({ url, name }) => `${url} serves ${name}`).join(", ");
    throw new UserError(`no server of rllm.reward.engine_url serves ${model}: ${others}`, {
      hint: "use the name that the server lists under /v1/models",
    });
  }
  const stray = served.find((one) => ![...assigned.values()].some((servers) => servers.includes(one)));
  if (stray === undefined) return assigned;
  throw new UserError(`the server at ${stray.url} serves ${stray.name}, which rllm.reward.model does not name`, {
    hint: "remove it from rllm.reward.engine_url",
  });
}

function serves({ name, root }: ServedScoringModel, model: string): boolean {
  return [name, root].some(
    (known) =>
      known !== undefined &&
      (known === model || resolve(known) === resolve(model) || basename(known) === basename(model)),
  );
}

async function ask<Answer>(
  schema: z.ZodType<Answer>,
  address: string,
  headers: Readonly<Record<string, string>>,
  body?: object,
): Promise<Answer> {
  let text: string;
  try {
    const response = await fetch(address, {
      ...(body === undefined ? {} : { method: "POST", body: JSON.stringify(body) }),
      headers: { "content-type": "application/json", ...headers },
      signal: AbortSignal.timeout(60_000),
    });
    text = await response.text();
    if (!response.ok) throw new Error(`it answered ${response.status}: ${text.slice(0, 200)}`);
  } catch (error) {
    const { cause, message } = error as Error;
    throw new RunError(`${address} cannot be used: ${cause instanceof Error ? cause.message : message}`, {
      code: "server_unreachable",
      hint: "start the reward model's server, or correct rllm.reward.engine_url",
      cause: error,
    });
  }
  try {
    return schema.parse(JSON.parse(text));
  } catch (error) {
    throw new UserError(`${address} is not a route of vLLM or SGLang: it answered ${text.slice(0, 200)}`, {
      hint: "rllm.reward.engine_url takes the addresses of inference servers, e.g. http://127.0.0.1:8000",
      cause: error,
    });
  }
}
