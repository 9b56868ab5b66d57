/** Rewards from a server, with the request format of LightRFT's `--remote_rm_url`. */
import type { Reply, Reward, RewardContext } from "../../agents/types.ts";
import { textOf } from "../../chat/images/content.ts";
import { RunError } from "../../errors.ts";
import { postJson } from "../../http/post-json.ts";

export interface RemoteRewardOptions<Row> {
  /** One server, or several whose rewards are added. */
  url: string | readonly string[];
  /** Sent as `references`. Omitted if no row has one. */
  reference?: (row: Row) => string;
  /** Sent as `queries`. Default: prompt and reply with special tokens. */
  query?: (row: Row, reply: Reply) => string;
  /** Largest number of replies per request. Default 64. */
  batchSize?: number;
  /** Milliseconds that a reply waits for others of the same request. Default 20. */
  gatherMs?: number;
  /** Retries after the first attempt. Default 4. */
  retries?: number;
  /** Delay before the first retry; doubles with each retry. Default 1. */
  pauseSeconds?: number;
  /** Time limit of an attempt, up to 300. Default 120. */
  timeoutSeconds?: number;
  headers?: Readonly<Record<string, string>>;
}

interface Waiting {
  query: string;
  prompt: string;
  reference: string | undefined;
  settle(result: { reward: number; retries: number } | { error: unknown }): void;
  signal: AbortSignal;
}

/**
 * `POST {url}` with `{"queries": [...], "prompts": [...], "references": [...]}`, answered by `{"rewards": [...]}`, one number
 * per query in order. Replies that are graded at about the same time share a request. `metrics.remote_reward_retries`
 * counts retries. If a server does not answer, the rollout fails.
 *
 * @example
 * remoteReward<Row>({ url: "http://localhost:5000/reward", reference: (row) => row.answer })
 */
export function remoteReward<Row>(options: RemoteRewardOptions<Row>): Reward<Row> {
  const { url, reference, query, timeoutSeconds = 120 } = options;
  if (timeoutSeconds > 300)
    throw new Error(`remoteReward: timeoutSeconds is ${timeoutSeconds}; the largest value is 300`);
  const servers = [url].flat().map((one) => openServer(one, options));
  if (servers.length === 0) throw new Error("remoteReward expects at least one URL");
  return async (row, reply, context: RewardContext<Row>) => {
    const asked = {
      query: query?.(row, reply) ?? reply.transcript(),
      prompt: context.messages.map(({ content }) => textOf(content)).join("\n\n"),
      reference: reference?.(row),
      signal: context.signal,
    };
    const answers = await Promise.all(servers.map((grade) => grade(asked)));
    const reward = answers.reduce((sum, answer) => sum + answer.reward, 0);
    const retries = answers.reduce((sum, answer) => sum + answer.retries, 0);
    const each = answers.map((answer) => answer.reward).join(" + ");
    return {
      reward,
      explanation: `graded ${each} by ${[url].flat().join(", ")}`,
      metrics: { remote_reward_retries: retries },
    };
  };
}

function openServer<Row>(url: string, options: RemoteRewardOptions<Row>) {
  const { batchSize = 64, gatherMs = 20 } = options;
  let waiting: Waiting[] = [];
  let timer: NodeJS.Timeout | undefined;
  const send = () => {
    clearTimeout(timer);
    timer = undefined;
    const batch = waiting.splice(0, batchSize);
    if (waiting.length > 0) timer = setTimeout(send, gatherMs);
    if (batch.length > 0) void gradeBatch(url, batch, options);
  };
  return (asked: Omit<Waiting, "settle">) =>
    new Promise<{ reward: number; retries: number }>((resolve, reject) => {
      const call: Waiting = {
        ...asked,
        settle(result) {
          asked.signal.removeEventListener("abort", giveUp);
          if ("error" in result) reject(result.error);
          else resolve(result);
        },
      };
      const giveUp = () => {
        waiting = waiting.filter((other) => other !== call);
        call.settle({ error: asked.signal.reason });
      };
      if (asked.signal.aborted) return giveUp();
      asked.signal.addEventListener("abort", giveUp, { once: true });
      waiting.push(call);
      timer ??= setTimeout(send, gatherMs);
      if (waiting.length >= batchSize) send();
    });
}

async function gradeBatch<Row>(
  url: string,
  batch: readonly Waiting[],
  options: RemoteRewardOptions<Row>,
): Promise<void> {
  const { retries = 4, pauseSeconds = 1, timeoutSeconds = 120, headers } = options;
  const hasReferences = batch.some(({ reference }) => reference !== undefined);
  const body = {
    queries: batch.map(({ query }) => query),
    prompts: batch.map(({ prompt }) => prompt),
    references: hasReferences ? batch.map(({ reference }) => reference ?? "") : undefined,
  };
  // The request is aborted when all of its replies are.
  const abandoned = new AbortController();
  let left = batch.length;
  for (const { signal } of batch) {
    signal.addEventListener("abort", () => --left === 0 && abandoned.abort(signal.reason), { once: true });
  }
  try {
    const post = { retries, pauseSeconds, timeoutSeconds, signal: abandoned.signal, headers };
    const answer = await postJson(url, body, post);
    const rewards = readRewards(url, answer.value, batch.length);
    for (const [index, reward] of rewards.entries()) batch[index]?.settle({ reward, retries: answer.retries });
  } catch (error) {
    for (const call of batch) call.settle({ error });
  }
}

function readRewards(url: string, value: unknown, count: number): number[] {
  const rewards = (value as { rewards?: unknown } | null)?.rewards;
  const sound =
    Array.isArray(rewards) && rewards.length === count && rewards.every((reward) => Number.isFinite(reward));
  if (!sound) {
    const got = JSON.stringify(value).slice(0, 200);
    throw new RunError(`${url} answered ${got} instead of {"rewards": [${count} numbers]}`);
  }
  return rewards as number[];
}
