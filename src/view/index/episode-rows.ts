/** The rows of the index for an episode. */
import { describeContent } from "../../chat/images/content.ts";
import { mean } from "../../statistics.ts";
import { toJson } from "../../tracking/run-folder/json-lines.ts";
import { type StoredEpisode, type StoredTrajectory, tokenAdvantages } from "../../tracking/run-folder/read-episode.ts";

/** The columns of an episode. */
export interface EpisodeColumns {
  task: string;
  rollout: number;
  correct: number | null;
  termination: string;
  failure: string | null;
  boundary: string | null;
  message: string | null;
  explanation: string | null;
  tokens: number;
  turns: number;
  tools: number;
  seconds: number;
  retries: number;
  oldest: number | null;
  version: number | null;
  preview: string;
}

/** Columns of `trajectories`: those of the episode, and those of each of its trajectories. */
export interface EpisodeRows {
  episode: EpisodeColumns;
  parts: TrajectoryColumns[];
  retriedAfter: { kind: string; boundary: string; message: string }[];
  /** For full text search. */
  text: string;
}

export interface TrajectoryColumns {
  role: string | null;
  instance: number | null;
  reward: StoredNumber;
  advantage: StoredNumber;
  part_tokens: number;
  part_turns: number;
}

/** SQLite has no NaN: it is stored as text, as in JSON. */
export type StoredNumber = number | string | null;

export const stored = (value: number | null | undefined): StoredNumber =>
  value === null || value === undefined ? null : Number.isFinite(value) ? value : String(value);

const maxTextLength = 10_000;
/** Lists show many messages, so each has a limit. */
export const cutText = (text: string) => (text.length > maxTextLength ? `${text.slice(0, maxTextLength)}...` : text);

const previewLength = 200;
/** Only this many characters of a text can be searched. */
export const searchedLength = 1 << 20;

export function episodeRows(episode: StoredEpisode): EpisodeRows {
  const { trajectories, failure } = episode;
  const steps = trajectories.flatMap((trajectory) => trajectory.steps);
  const sampled = steps.filter(({ policyVersion }) => policyVersion >= 0);
  const versions = sampled.flatMap(({ policyVersion, tokenVersions }) => [
    tokenVersions?.[0] ?? policyVersion,
    policyVersion,
  ]);
  const parts = trajectories.map(trajectoryColumns);
  return {
    episode: {
      task: episode.taskId,
      rollout: episode.rollout,
      correct: episode.correct === null || episode.correct === undefined ? null : Number(episode.correct),
      termination: episode.termination,
      failure: failure?.kind ?? null,
      boundary: failure?.boundary ?? null,
      message: failure === undefined ? null : cutText(failure.message),
      explanation: episode.explanation ?? null,
      tokens: steps.reduce((sum, { tokens }) => sum + tokens.length, 0),
      turns: steps.length,
      tools: steps.reduce((sum, { reply }) => sum + (reply?.toolCalls.length ?? 0), 0),
      seconds: episode.seconds,
      retries: episode.retries,
      oldest: versions.length === 0 ? null : Math.min(...versions),
      version: versions.length === 0 ? null : Math.max(...versions),
      preview: (steps.at(-1)?.text ?? "")
        .slice(0, 4 * previewLength)
        .replaceAll(/\s+/g, " ")
        .trim()
        .slice(0, previewLength),
    },
    parts: parts.length > 0 ? parts : [noTrajectory],
    retriedAfter: (episode.retriedAfter ?? []).map((each) => ({ ...each, message: cutText(each.message) })),
    text: searchedText(episode).slice(0, searchedLength),
  };
}

const noTrajectory = { role: null, instance: null, reward: null, advantage: null, part_tokens: 0, part_turns: 0 };

function trajectoryColumns(trajectory: StoredTrajectory): TrajectoryColumns {
  const { name, instance, reward, steps } = trajectory;
  return {
    role: name,
    instance: instance ?? null,
    reward: stored(reward),
    advantage: stored(meanAdvantage(trajectory)),
    part_tokens: steps.reduce((sum, { tokens }) => sum + tokens.length, 0),
    part_turns: steps.length,
  };
}

/** Null if it was not trained on. */
function meanAdvantage(trajectory: StoredTrajectory): number | null {
  const { advantage, steps } = trajectory;
  if (typeof advantage === "number") return advantage;
  const values = steps.flatMap(({ tokens }, index) => tokenAdvantages(trajectory, index, tokens.length) ?? []);
  return values.length === 0 ? null : mean(values);
}

/** Each message only once, because the last prompt of a conversation repeats the earlier ones. */
function searchedText({ row, trajectories, explanation, failure }: StoredEpisode): string {
  const texts = new Set<string>();
  for (const { steps } of trajectories) {
    for (const { messages, text } of steps) {
      for (const { content, reasoning } of messages) {
        texts.add(describeContent(content));
        if (reasoning) texts.add(reasoning);
      }
      texts.add(text);
    }
  }
  return [...texts, explanation ?? "", failure?.message ?? "", row === undefined ? "" : toJson(row)].join("\n");
}
