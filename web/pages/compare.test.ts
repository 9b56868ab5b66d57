// @vitest-environment happy-dom
import { expect, test } from "vitest";
import type { OriginKind } from "../../src/config/tree.ts";
import { textChanges } from "../parts/diff-view.tsx";
import { plannedCharts } from "./charts.ts";
import { differences, overlay } from "./compare.tsx";

const curves = (steps: number[], columns: Record<string, (number | "NaN" | null)[]>) => ({
  names: Object.keys(columns).sort(),
  steps,
  columns,
});

test("curves of runs lie over each other by step", () => {
  const runs = [curves([1, 2], { "reward/mean": [0, 1] }), curves([2, 3], { "reward/mean": [5, 6] })];
  const { steps, charts } = overlay(["left", "right"], runs, ["reward/mean"]);
  expect(steps).toEqual([1, 2, 3]);
  expect(charts[0]?.curves).toEqual([
    { label: "left", values: [0, 1, null] },
    { label: "right", values: [null, 5, 6] },
  ]);
});

test("curves of runs lie over each other by tokens", () => {
  const run = (tokens: number[]) => curves([1, 2], { "reward/mean": [0, 1], "perf/sampled_tokens": tokens });
  const { steps, charts } = overlay(["left", "right"], [run([10, 20]), run([10, 5])], ["reward/mean"], "tokens");
  expect(steps).toEqual([10, 15, 30]);
  expect(charts[0]?.curves.map(({ values }) => values)).toEqual([
    [0, null, 1],
    [0, 1, null],
  ]);
});

test("a configuration differs where values differ, also where a key is absent", () => {
  const entry = (key: string, value: unknown, kind: OriginKind) => ({ key, value, origin: { kind, text: kind } });
  const left = { entries: [entry("a", 1, "default"), entry("b", [1], "default"), entry("c", 1, "file")] };
  const right = { entries: [entry("a", 1, "override"), entry("b", [2], "override")] };
  expect(differences([left, right])).toEqual([
    { key: "b", entries: [left.entries[1], right.entries[1]] },
    { key: "c", entries: [left.entries[2], undefined] },
  ]);
});

test("charts show what a run has, each curve once, by role", () => {
  const one = plannedCharts(
    curves([1, 2], { "reward/mean": [0, 1], "reward/agent/mean": [0, 1], "actor/entropy": ["NaN", 2] }),
  );
  expect(one.map(({ title, curves }) => [title, curves.map(({ label }) => label)])).toEqual([
    ["Reward", ["mean"]],
    ["Entropy", ["policy"]],
  ]);
  const two = plannedCharts(curves([1], { "reward/mean": [0.5], "reward/solver/mean": [0], "reward/judge/mean": [1] }));
  expect(two[0]?.curves.map(({ label }) => label)).toEqual(["mean", "judge", "solver"]);
  const zeros = { "batch/agent/fractions/too_easy": [0], "batch/agent/fractions/too_hard": [0] };
  expect(plannedCharts(curves([1], zeros))[0]?.curves).toHaveLength(2);
});

test("texts that differ too much are not compared", () => {
  expect(textChanges("the cat", "the dog")?.some(({ added }) => added)).toBe(true);
  const words = (seed: number) => Array.from({ length: 20_000 }, (_, index) => (index * seed) % 9973).join(" ");
  expect(textChanges(words(7919), words(6007))).toBeUndefined();
});
