/** Rows for `hone sft`, pairs for `hone dpo` and ATIF documents from the episodes of a run or an evaluation. */
import { existsSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { toMessage } from "../chat/messages.ts";
import { UserError } from "../errors.ts";
import { withInside } from "../files/regular-file.ts";
import { conversationRows } from "../gateway/traces/conversation-rows.ts";
import { type AtifTrajectory, toAtif } from "../harbor/atif.ts";
import { mediaFolder } from "../images/media-store.ts";
import { completeLines, maxEpisodeBytes } from "../tracking/run-folder/lines.ts";
import { readEpisode, type StoredEpisode, type StoredTrajectory } from "../tracking/run-folder/read-episode.ts";
import {
  type Attempt,
  type Choice,
  type Chosen,
  chooseAttempts,
  documents,
  type Form,
  pairs,
  rows,
  type SftRow,
} from "./choose-attempts.ts";

export const episodeKinds = ["train", "validation", "all"] as const;

export interface Selection extends Choice {
  /** Only trajectories of this role. Default: all roles. */
  role?: string;
  /** Default: episodes of training; of an evaluation, which has none, its own. */
  kind?: (typeof episodeKinds)[number];
}

export interface Selected extends Chosen {
  /** Lines that cannot be read. */
  damaged: number;
}

/** @throws UserError if the folder has no episodes, or the filter is not valid */
export const selectRows = (folder: string, selection: Selection): Selected => collect(folder, selection, rows);

/** One ATIF document for each chosen episode. */
export const selectDocuments = (folder: string, selection: Selection): Selected =>
  collect(folder, selection, documents, (episode) => toAtif(episode));

/** The best against the worst episode of each task, if their rewards differ and they begin alike. */
export const selectPairs = (folder: string, selection: Selection): Selected => collect(folder, selection, pairs);

function collect(
  folder: string,
  { role, kind, ...choice }: Selection,
  form: Form,
  documentOf?: (episode: StoredEpisode) => AtifTrajectory | undefined,
): Selected {
  if (!existsSync(folder)) throw new UserError(`${folder}: no such folder`);
  const training = kind === undefined ? episodeFiles(folder, "train") : [];
  const files = training.length > 0 ? training : episodeFiles(folder, kind ?? "validation");
  if (files.length === 0) {
    throw new UserError(`${folder} has no ${kind === undefined || kind === "all" ? "" : `${kind} `}episodes`, {
      hint: "name the folder of a run, or of hone eval",
    });
  }
  let damaged = 0;
  const attemptOf = (episode: StoredEpisode): Attempt => {
    const trajectories = episode.trajectories.filter(({ name }) => role === undefined || name === role);
    return {
      task: episode.taskId,
      reward: episode.trajectories[0]?.reward ?? null,
      correct: episode.correct ?? null,
      tokens: trajectories.reduce((sum, { steps }) => steps.reduce((all, one) => all + one.tokens.length, sum), 0),
      rows: trajectories.flatMap((trajectory) => rowsOfTrajectory(trajectory, folder)),
      document: documentOf?.({ ...episode, trajectories }),
    };
  };
  function* attempts() {
    for (const episode of episodesOf(folder, files, () => damaged++)) yield attemptOf(episode);
  }
  const chosen = chooseAttempts(attempts(), choice, form);
  return { ...chosen, damaged };
}

const fileName = /^step-\d+(-validation)?\.jsonl$/;

/** Of a run, or of each model of an evaluation. @returns paths within the folder */
function episodeFiles(folder: string, kind: (typeof episodeKinds)[number]): string[] {
  const matches = (name: string) => {
    const [found, validation] = fileName.exec(name) ?? [];
    return found !== undefined && (kind === "all" || (kind === "validation") === (validation !== undefined));
  };
  const inside = (at: string) =>
    namesIn(join(folder, at, "episodes"))
      .filter(matches)
      .map((name) => join(at, "episodes", name));
  const own = inside("");
  return own.length > 0 ? own : namesIn(folder).flatMap(inside);
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder).sort();
  } catch {
    return [];
  }
}

function* episodesOf(folder: string, files: readonly string[], onDamage: () => void): Generator<StoredEpisode> {
  for (const file of files) {
    const found = withInside(folder, file, (opened) => {
      const episodes: StoredEpisode[] = [];
      for (const { text } of completeLines(opened, { max: maxEpisodeBytes })) {
        try {
          if (text === undefined) throw new Error("too long");
          episodes.push(readEpisode(text));
        } catch {
          onDamage();
        }
      }
      return episodes;
    });
    yield* found ?? [];
  }
}

/** Each whole conversation. Calls of models that are not trained are left out. */
function rowsOfTrajectory({ steps }: StoredTrajectory, folder: string): SftRow[] {
  const own = steps.filter(({ policyVersion, messages }) => policyVersion >= 0 && messages.length > 0);
  return conversationRows(
    own.map(({ messages, tools = null, reply, text }) => ({
      messages: [...messages, reply ? toMessage(reply) : { role: "assistant", content: text }],
      tools,
    })),
    join(resolve(folder), mediaFolder),
  );
}
