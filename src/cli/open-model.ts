/** Opens the model that a configuration names, with a checkpoint's weights if there is one, for sampling. */
import { join } from "node:path";
import { adapterSpec } from "../backends/adapter-spec.ts";
import type { Sampler } from "../backends/engine.ts";
import { openEngine } from "../backends/registry/open-engine.ts";
import { openChat } from "../chat/chat.ts";
import type { Blind, Vision } from "../chat/images/prepare-images.ts";
import type { Chat } from "../chat/types.ts";
import type { ComposedConfig } from "../config/compose.ts";
import { visionOf } from "../rollout/vision.ts";
import type { OpenCheckpoint } from "../trainer/checkpoints/open-checkpoint.ts";
import { imageFetching } from "../trainer/opening/image-fetching.ts";
import { showStatus } from "./show-status.ts";

export interface OpenModel {
  sampler: Sampler;
  chat: Chat;
  vision: Vision | Blind;
  name: string;
  /** The longest conversation in tokens. */
  maxLength: number;
  close(): Promise<void>;
}

export async function openModel(
  composed: ComposedConfig,
  checkpoint: OpenCheckpoint | undefined,
  warn: (text: string) => void,
): Promise<OpenModel> {
  const { config } = composed;
  const status = showStatus();
  const engine = await openEngine(composed, { onStatus: status.say, warn }).finally(status.end);
  try {
    const adapter = checkpoint ? adapterSpec(config) : ({ kind: "none" } as const);
    const { sampler, learner } = await engine.createPolicy({ adapter });
    if (checkpoint)
      await sampler.load(await learner.loadState(join(checkpoint.folder, "policy"), { optimizer: false }));
    const chat = await openChat(engine.model.directory, config, warn);
    const { name } = engine.model;
    const maxLength = Math.min(engine.model.maxLength, sampler.maxLength ?? Number.POSITIVE_INFINITY);
    return {
      sampler,
      chat,
      vision: visionOf(engine, imageFetching(config, warn)),
      name,
      maxLength,
      close: () => engine.close(),
    };
  } catch (error) {
    await engine.close();
    throw error;
  }
}
