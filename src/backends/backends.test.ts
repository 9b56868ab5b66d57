import { afterEach, expect, it, vi } from "vitest";
import { composeConfig } from "../config/compose.ts";
import { backendHolding, openEngine, requireBackend } from "./backends.ts";
import { adapterSpec } from "./engine-parts.ts";

const compose = (...overrides: string[]) => composeConfig({ overrides });
const config = (...overrides: string[]) => compose(...overrides).config;
afterEach(() => vi.unstubAllEnvs());

const onVerl = "rllm/backend=verl";

it.each([
  ["a model that does not exist on verl", [onVerl, "model.name=./nowhere"], /nowhere does not exist/],
  ["a service that is not a URL", ["rllm/backend=tinker", "tinker_base_url=nowhere"], /nowhere is not a URL/],
  ["a service without its key", ["rllm/backend=tinker", "tinker_base_url=https://a.example"], /requires an API key/],
])("refuses %s before anything is opened", async (_, overrides, message) => {
  vi.stubEnv("TINKER_API_KEY", "");
  expect(() => requireBackend(compose(...overrides))).toThrow(message);
  await expect(openEngine(composeConfig({ overrides }))).rejects.toThrow(message);
});

it("knows what an engine can do from the configuration alone", () => {
  expect(requireBackend(compose()).capabilities(config())).toMatchObject({
    engine: "local",
    adapters: ["lora", "full", "none"],
  });
  const tinker = compose("rllm/backend=tinker");
  expect(requireBackend(tinker).capabilities(tinker.config)).toMatchObject({ engine: "tinker", sampleLogprobs: "raw" });
});

it("knows which backend's service holds a state", () => {
  expect(backendHolding("tinker://run/weights/7")).toBe("tinker");
  expect(backendHolding("runs/latest")).toBeUndefined();
});

it.each([
  [["model.lora_rank=8", "model.train_unembed=true"], { kind: "lora", rank: 8, targets: ["attn", "mlp", "unembed"] }],
  [["model.train_attn=false", "model.train_unembed=false"], { kind: "lora", targets: ["mlp"] }],
  [["model.lora_rank=0"], { kind: "full" }],
  [["model.lora_rank=0", "model.train_vision=true"], { kind: "full", trainVision: true }],
  [["model.train_vision=true"], { kind: "lora", trainVision: true }],
])("%j asks for the adapter %j", (overrides, adapter) => {
  expect(adapterSpec(config(...overrides))).toMatchObject(adapter);
});
