// @vitest-environment happy-dom
import { effect } from "@preact/signals";
import { expect, test, vi } from "vitest";

const listeners = new Map<string, (event: { data: string }) => void>();

test("the list of runs, and compared runs, follow a run that trains", async () => {
  vi.useFakeTimers();
  vi.stubGlobal(
    "EventSource",
    class {
      addEventListener = (name: string, use: (event: { data: string }) => void) => void listeners.set(name, use);
      close() {}
    },
  );
  const asked: string[] = [];
  vi.stubGlobal("fetch", async (path: string) => {
    asked.push(path);
    return new Response(JSON.stringify({ asked: asked.length }));
  });
  const { answerTo } = await import("./fetch.ts");
  const { listen } = await import("./live.ts");
  listen();
  const list = ["/api/runs", "/api/columns?names=a"];
  const shown = [...list, "/api/runs/toy/curves", "/api/runs/toy/scales", "/api/runs/other/curves"];
  const stop = effect(() => {
    answerTo("/api/runs", {});
    answerTo("/api/columns", { names: "a" });
    answerTo("/api/runs/:run/curves", { run: "toy" });
    answerTo("/api/runs/:run/scales", { run: "toy" });
    answerTo("/api/runs/:run/curves", { run: "other" });
  });
  await vi.advanceTimersByTimeAsync(1000);
  expect(asked.splice(0)).toEqual(shown);
  const changed = { run: "toy", step: 2, episodes: 8, state: "live" };
  for (let burst = 0; burst < 5; burst++) listeners.get("changed")?.({ data: JSON.stringify(changed) });
  await vi.advanceTimersByTimeAsync(1000);
  expect(new Set(asked.splice(0))).toEqual(new Set([...list, "/api/runs/toy/curves"]));
  listeners.get("runs")?.({ data: '{"runs":["toy"]}' });
  await vi.advanceTimersByTimeAsync(1000);
  expect(asked).toEqual(list);
  stop();
});
