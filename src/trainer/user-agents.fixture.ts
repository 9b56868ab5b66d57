/** For workflow.test.ts: what a user's own module may export. */

import type { Agent, Environment, EnvironmentStep, Observation, Reply, Workflow } from "../agents/types.ts";
import { chatAgent } from "../agents/workflows.ts";
import type { Task } from "../data/dataset.ts";

export class Shouting implements Agent {
  readonly #chat = chatAgent();
  readonly messages = this.#chat.messages;
  readonly #mark: string;

  constructor(args: { mark?: string }) {
    this.#mark = args.mark ?? "!";
  }
  observe(observation: Observation): void {
    this.#chat.observe(typeof observation === "string" ? observation.toUpperCase() + this.#mark : observation);
  }
  act(reply: Reply): Reply {
    return this.#chat.act(reply);
  }
}

export class Echo implements Environment {
  readonly #task: Task;

  constructor(task: Task) {
    this.#task = task;
  }
  reset(): string {
    return `say ${this.#task.id}`;
  }
  step(reply: Reply): EnvironmentStep {
    return { observation: "", reward: reply.text.length, done: true };
  }
}

export const always: Workflow<unknown> = () => 0.25;
