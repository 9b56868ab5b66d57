/** The same validation prompts before and after training, side by side. */
import { textOf } from "../../chat/images/content.ts";
import { withInside } from "../../files/regular-file.ts";
import { linesFrom, maxEpisodeBytes } from "../../tracking/run-folder/lines.ts";
import { readEpisode } from "../../tracking/run-folder/read-episode.ts";
import { episodesFile } from "../../tracking/run-folder/run-folder.ts";
import type { Episode } from "../../trajectories/types.ts";

const shown = 4;

/** Lines with the first few prompts and both replies; empty if the run has no validation before training. */
export function beforeAfter(folder: string, lastStep: number): string[] {
  if (lastStep === 0) return [];
  const before = firstEpisodes(folder, 0);
  const after = new Map(firstEpisodes(folder, lastStep).map((episode) => [episode.id, episode]));
  return before.flatMap((episode) => {
    const later = after.get(episode.id);
    return later ? [`  ${promptOf(episode)}`, `    before  ${replyOf(episode)}`, `    after   ${replyOf(later)}`] : [];
  });
}

/** A file that cannot be read only shortens the report: the run itself is complete. */
function firstEpisodes(folder: string, step: number): Episode[] {
  const found: Episode[] = [];
  try {
    withInside(folder, `episodes/${episodesFile(step, "validation")}`, (file) => {
      for (const { text } of linesFrom(file, { max: maxEpisodeBytes })) {
        if (found.length === shown) return;
        if (text) found.push(readEpisode(text));
      }
    });
  } catch {}
  return found;
}

function promptOf(episode: Episode): string {
  const messages = episode.trajectories[0]?.steps[0]?.messages ?? [];
  return quote(textOf(messages.findLast(({ role }) => role === "user")?.content ?? episode.taskId));
}

function replyOf(episode: Episode): string {
  const trajectory = episode.trajectories[0];
  const text = trajectory?.steps.at(-1)?.text;
  const reward = trajectory?.reward ?? null;
  return `${quote(text ?? episode.failure?.message ?? "")}  (reward ${reward === null ? "unknown" : Number(reward.toFixed(3))})`;
}

function quote(text: string): string {
  const line = text.trim().replace(/\s+/g, " ");
  return JSON.stringify(line.length > 100 ? `${line.slice(0, 99)}…` : line);
}
