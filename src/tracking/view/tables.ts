/** A run, and the episodes of a step, in rows. */

import { readMetrics } from "../metrics-file.ts";
import { chart } from "../plots.ts";
import type { EpisodeFile, KeptEpisode } from "./kept-episodes.ts";
import { type Row, span } from "./styled.ts";

const dim = "2";
const bold = "1";

/** The reward over the steps, and the last validation. */
export function runHead(run: string, name: string, width: number): Row[] {
  const steps = readMetrics(run);
  const rewards = steps.map(({ metrics }) => metrics["reward/mean"] ?? Number.NaN);
  const validation = readMetrics(run, "validation").at(-1);
  const figures = Object.entries(validation?.metrics ?? {})
    .filter(([key]) => key.startsWith("val/") && key.split("/").length > 2)
    .map(([key, value]) => `${key.slice(4)} ${round(value)}`);
  const first = steps[0]?.step ?? 1;
  return [
    [span(`${name}: ${steps.length} steps`, bold)],
    ...(rewards.some(Number.isFinite)
      ? [
          [span("mean reward of each step", dim)],
          ...chart(rewards, { width, height: 8, first }).map((text) => [span(text)]),
        ]
      : [[span("no step has ended yet", dim)]]),
    ...(figures.length > 0 ? [[span(`validation after step ${validation!.step}: ${figures.join(", ")}`)]] : []),
    [],
  ];
}

export function fileRow({ step, kind }: EpisodeFile, run: RunFigures): Row {
  const figures = run.of(step, kind);
  return [span(`step ${String(step).padStart(4)}  ${kind.padEnd(10)}  ${figures}`)];
}

export interface RunFigures {
  of(step: number, kind: EpisodeFile["kind"]): string;
}

/** What a list of steps says of each. */
export function runFigures(run: string): RunFigures {
  const steps = new Map(readMetrics(run).map(({ step, metrics }) => [step, metrics]));
  const validations = new Map(readMetrics(run, "validation").map(({ step, metrics }) => [step, metrics]));
  const show = (metrics: Readonly<Record<string, number>> | undefined, names: Record<string, string>) =>
    Object.entries(names)
      .flatMap(([key, label]) => (metrics?.[key] === undefined ? [] : [`${label} ${round(metrics[key])}`]))
      .join("   ");
  return {
    of: (step, kind) =>
      kind === "validation"
        ? show(validations.get(step), { "val/reward": "reward" })
        : show(steps.get(step), {
            "reward/mean": "reward",
            "actor/grad_norm": "gradient",
            "perf/sampled_tokens": "tokens",
          }),
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
    span(
      `  ${advantage.padStart(9)}  ${String(steps.length).padStart(5)}  ${String(tokens).padStart(6)}  ${episode.termination.padEnd(28)}  `,
    ),
    span(`${episode.id}  `, dim),
    span(reply),
  ];
}

function round(value: number): string {
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}
