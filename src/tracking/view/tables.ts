/** A run, its steps and the episodes of a step, one row each. */

import { chart } from "../console/text-plots.ts";
import type { Metrics } from "../events.ts";
import { readMetrics } from "../run-folder/metrics-file.ts";
import type { EpisodeFile, KeptEpisode } from "./kept-episodes.ts";
import { bold, dim, type Row, span } from "./styled.ts";

/** A chart of the reward over the steps, and the last validation. */
export function runHead(run: string, name: string, width: number): Row[] {
  const steps = readMetrics(run);
  const rewards = steps.map(({ metrics }) => metrics["reward/mean"] ?? Number.NaN);
  const rows: Row[] = [[span(`${name}: ${steps.length} steps`, bold)]];
  if (rewards.some(Number.isFinite)) {
    const first = steps[0]?.step ?? 1;
    const lines = chart(rewards, { width, height: 8, first });
    rows.push([span("mean reward of each step", dim)], ...lines.map((text) => [span(text)]));
  } else {
    rows.push([span("no step has finished so far", dim)]);
  }
  const validation = readMetrics(run, "validation").at(-1);
  const values = Object.entries(validation?.metrics ?? {})
    .filter(([key]) => key.startsWith("val/") && key.split("/").length > 2)
    .map(([key, value]) => `${key.slice("val/".length)} ${round(value)}`);
  if (values.length > 0) rows.push([span(`validation after step ${validation?.step}: ${values.join(", ")}`)]);
  return [...rows, []];
}

/** The metrics shown of each file, by the name that they are shown under. */
const shownMetrics = {
  train: { reward: "reward/mean", gradient: "actor/grad_norm", tokens: "perf/sampled_tokens" },
  validation: { reward: "val/reward" },
};

/** Reads the metrics of a run once and makes the row of each of its episode files. */
export function fileRows(run: string): (file: EpisodeFile) => Row {
  const read = (kind?: "validation") => new Map(readMetrics(run, kind).map(({ step, metrics }) => [step, metrics]));
  const metricsOf = { train: read(), validation: read("validation") };
  return ({ step, kind }) => {
    const metrics: Metrics = metricsOf[kind].get(step) ?? {};
    const shown = Object.entries(shownMetrics[kind]).flatMap(([label, name]) => {
      const value = metrics[name];
      return value === undefined ? [] : [`${label} ${round(value)}`];
    });
    return [span(`step ${String(step).padStart(4)}  ${kind.padEnd(10)}  ${shown.join("   ")}`)];
  };
}

export const episodeHead: Row = [
  span("reward  advantage  turns  tokens  ended by                      task and reply", dim),
];

export function episodeRow(episode: KeptEpisode): Row {
  const [first] = episode.trajectories;
  const steps = episode.trajectories.flatMap((trajectory) => trajectory.steps);
  const tokens = steps.reduce((sum, step) => sum + step.tokens.length, 0);
  const advantage = typeof first?.advantage === "number" ? round(first.advantage) : "";
  const reply = (steps.at(-1)?.text ?? "").replaceAll(/\s+/g, " ").trim();
  const reward = first?.reward ?? null;
  const style = episode.failure ? "33" : reward === null ? dim : reward > 0 ? "32" : "31";
  return [
    span(reward === null ? "unknown" : round(reward).padEnd(6), style),
    span(`  ${advantage.padStart(9)}  ${String(steps.length).padStart(5)}  ${String(tokens).padStart(6)}`),
    span(`  ${episode.termination.padEnd(28)}  `),
    span(`${episode.id}  `, dim),
    span(reply),
  ];
}

function round(value: number): string {
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}
