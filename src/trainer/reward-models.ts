/** Reward models score the conversations of finished episodes, and their scores become part of the rewards. */

import type { Engine, ScoreMoments, Scorer } from "../backends/engine.ts";
import { EngineDied } from "../backends/engine-parts.ts";
import { HoneError, UserError } from "../base/errors.ts";
import { append, mean, ownValue } from "../base/values.ts";
import { loadChat } from "../chat/chat.ts";
import { toMessage } from "../chat/messages.ts";
import { TextTooLong } from "../chat/tokenizer.ts";
import type { Chat } from "../chat/types.ts";
import type { Episode, Trajectory } from "../trajectories/types.ts";

export interface RewardModelOptions {
  models: readonly {
    /** A Hugging Face directory or hub id. */
    model: string;
    /** In its metrics: the last part of `model`, with a number if that is taken. */
    name: string;
    weight: RoleWeights;
  }[];
  /** The weight of the workflow's own reward; 1 for roles that are not named. */
  ownWeight: RoleWeights;
  /** Normalize scores by the moments that the models' files store. */
  normalize: boolean;
}

export interface RewardModel {
  name: string;
  weight: RoleWeights;
  scorer: Scorer;
  /** The scores are normalized by these. */
  moments?: ScoreMoments;
  /** Its own tokenizer and chat template. */
  chat: Pick<Chat, "renderLater">;
}

export interface RewardModels {
  models: readonly RewardModel[];
  /** The weight of the workflow's own reward. */
  ownWeight: RoleWeights;
}

/** `failed`: the model did not answer, so the rollout failed; otherwise this conversation cannot be scored. */
type Score = { value: number } | { problem: string; failed?: true };

/** @throws UserError when a model cannot be loaded, has no chat template, or cannot be normalized */
export async function openRewardModels(
  engine: Engine,
  { models: wanted, ownWeight, normalize }: RewardModelOptions,
  warn: (text: string) => void,
): Promise<RewardModels> {
  if (!engine.createScorer) {
    throw new UserError(`the ${engine.capabilities.engine} engine does not support reward models`, {
      hint: "grade in the script, or with rllm.reward.remote_url",
    });
  }
  const models: RewardModel[] = [];
  for (const { model, name, weight } of wanted) {
    const scorer = await engine.createScorer(model);
    const opened = { name, weight, scorer, chat: openChat(model, scorer, warn) };
    const moments = momentsOf(model, scorer, normalize, warn);
    models.push(moments ? { ...opened, moments } : opened);
  }
  return { models, ownWeight };
}

function momentsOf(
  model: string,
  { moments }: Scorer,
  normalize: boolean,
  warn: (text: string) => void,
): ScoreMoments | undefined {
  if (normalize && moments === undefined) {
    throw new UserError(`rllm.reward.normalize=true: ${model} stores no mean and standard deviation of its scores`, {
      hint: "add `mean` and `std` to its config.json, or set rllm.reward.normalize=false",
    });
  }
  if (normalize || moments === undefined || (moments.mean === 0 && moments.std === 1)) return moments;
  const stored = `mean ${moments.mean} and standard deviation ${moments.std}`;
  warn(`${model} stores the ${stored} of its scores, which are not applied; rllm.reward.normalize=true applies them`);
  return undefined;
}

function openChat(model: string, { model: { directory } }: Scorer, warn: (text: string) => void): Chat {
  try {
    return loadChat(directory, { log: warn });
  } catch (error) {
    if (!(error instanceof UserError)) throw error;
    throw new UserError(`rllm.reward.model=${model}: ${error.message}`, {
      hint: "use a reward model with a tokenizer and a chat template, or add them to its folder",
    });
  }
}

/**
 * Replaces the reward of every trajectory by the weighted sum of its own and of the models' scores, which is unknown if
 * one of them is. The scores are kept with the trajectory, and reported as `reward_model/{name}`, averaged over the
 * trajectories of an episode. Failed rollouts are not scored, and a rollout fails if a model does not answer.
 *
 * @param onProblem called for each score that failed
 * @throws EngineDied when the process of a reward model has ended
 */
export async function scoreEpisodes(
  episodes: readonly Episode[],
  { models, ownWeight }: RewardModels,
  onProblem: (model: string, episode: Episode, problem: string) => void,
): Promise<void> {
  const finished = episodes.filter(({ failure }) => failure === undefined);
  const all = finished.flatMap(({ trajectories }) => trajectories);
  const columns = await Promise.all(
    models.map(async (model) => {
      const scored = all.filter(({ name }) => weightOf(model.weight, name) !== undefined);
      const scores = await scoresOf(model, scored);
      return { ...model, scores: new Map(scored.map((trajectory, index) => [trajectory, scores[index]!])) };
    }),
  );
  for (const episode of finished) {
    const known = new Map<string, number[]>();
    let failed = 0;
    for (const trajectory of episode.trajectories) {
      const own = weightOf(ownWeight, trajectory.name) ?? 1;
      const scores: Record<string, number> = {};
      let sum: number | null = 0;
      if (own !== 0) {
        sum = trajectory.reward === null ? null : own * trajectory.reward;
        if (trajectory.reward !== null) scores.own = trajectory.reward;
      }
      for (const { name, weight, scores: found } of columns) {
        const score = found.get(trajectory);
        if (score === undefined) continue;
        if ("problem" in score) {
          sum = null;
          failed++;
          onProblem(name, episode, score.problem);
          if (score.failed) fail(episode, `the reward model ${name} did not answer: ${score.problem}`);
          continue;
        }
        scores[name] = score.value;
        if (sum !== null) sum += (weightOf(weight, trajectory.name) ?? 0) * score.value;
      }
      trajectory.reward = sum;
      trajectory.scores = scores;
      for (const [name, value] of Object.entries(scores)) append(known, name, value);
    }
    for (const [name, values] of known) {
      episode.metrics[`reward_model/${name}`] = mean(values);
    }
    episode.metrics["reward_model/failed"] = failed;
  }
}

/** @returns the roles that weights name but no trajectory of these episodes has, such as misspelled ones */
export function rolesWithoutTrajectories(
  { models, ownWeight }: RewardModels,
  episodes: readonly Episode[],
): readonly string[] {
  const present = new Set(episodes.flatMap(({ trajectories }) => trajectories.map(({ name }) => name)));
  const named = new Set([ownWeight, ...models.map(({ weight }) => weight)].flatMap(namedRoles));
  return present.size === 0 ? [] : [...named].filter((role) => !present.has(role));
}

/** The same failure as for a reward of the workflow, so that the run waits during an outage. */
function fail(episode: Episode, message: string): void {
  episode.failure ??= { kind: "infrastructure", boundary: "reward", message };
  episode.termination = "error";
}

async function scoresOf(
  { scorer, chat, moments = { mean: 0, std: 1 } }: RewardModel,
  trajectories: readonly Trajectory[],
): Promise<Score[]> {
  const rendered = await Promise.all(trajectories.map((trajectory) => renderConversation(trajectory, chat, scorer)));
  const sequences = rendered.filter((tokens) => typeof tokens !== "string");
  const scores = sequences.length === 0 ? new Float32Array() : await askScorer(scorer, sequences);
  let next = 0;
  return rendered.map((tokens): Score => {
    if (typeof tokens === "string") return { problem: tokens };
    if (typeof scores === "string") return { problem: scores, failed: true };
    const value = ((scores[next++] ?? Number.NaN) - moments.mean) / moments.std;
    return Number.isFinite(value) ? { value } : { problem: `the score is ${value}` };
  });
}

/** @returns the scores, or the reason why there are none */
async function askScorer(scorer: Scorer, sequences: readonly Int32Array[]): Promise<Float32Array | string> {
  try {
    return await scorer.score(sequences);
  } catch (error) {
    if (error instanceof EngineDied || !(error instanceof HoneError)) throw error;
    return error.message;
  }
}

/** Renders the last model call and its reply. @returns its tokens, or the reason why it cannot be scored */
async function renderConversation(
  { steps }: Trajectory,
  chat: Pick<Chat, "renderLater">,
  { model }: Scorer,
): Promise<Int32Array | string> {
  const last = steps.at(-1);
  if (last === undefined) return "the model was not called";
  if (last.media) return "the conversation has images, and reward models read only text";
  const reply = last.reply ? toMessage(last.reply) : { role: "assistant" as const, content: last.text };
  try {
    const options: Parameters<Chat["renderLater"]>[1] = {
      addGenerationPrompt: false,
      maxPromptTokens: model.maxLength,
    };
    if (last.tools) options.tools = last.tools;
    const tokens = await chat.renderLater([...last.messages, reply], options);
    if (tokens.length <= model.maxLength) return tokens;
    return `the conversation has ${tokens.length} tokens, and the reward model reads at most ${model.maxLength}`;
  } catch (error) {
    if (error instanceof HoneError || error instanceof TextTooLong) return error.message;
    throw error;
  }
}

/** One weight for all roles, or a weight per role. */
export type RoleWeights = number | Readonly<Record<string, number>>;

/** @returns undefined if the role is not named */
function weightOf(weights: RoleWeights, role: string): number | undefined {
  return typeof weights === "number" ? weights : ownValue<number>(weights, role);
}

const namedRoles = (weights: RoleWeights): string[] => (typeof weights === "number" ? [] : Object.keys(weights));
