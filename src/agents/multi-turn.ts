/** Agent and environment by turns, until the environment is done or a limit is met. */

import type { Task } from "../data/task.ts";
import { chatAgent } from "./chat-agent.ts";
import { checkStep } from "./check-step.ts";
import { RolloutEnded } from "./control-flow.ts";
import type {
  Agent,
  CallParams,
  Environment,
  EnvironmentContext,
  EnvironmentStep,
  Outcome,
  Reply,
  Workflow,
} from "./types.ts";

export interface MultiTurnOptions<Row, Action = Reply> {
  /** Creates one for each attempt. */
  environment: (task: Task<Row>) => Environment<Action> | Promise<Environment<Action>>;
  /** Creates one for each attempt. Default: `chatAgent()`, whose actions are replies. */
  agent?: (task: Task<Row>) => Agent<Action> | Promise<Agent<Action>>;
  /** Turns, where fewer than `rllm.agent.max_steps`. */
  maxSteps?: number;
  /** Of each model call, e.g. `{ maxTokens: 64 }`. */
  params?: CallParams;
}

type WithAgent<Row, Action> = MultiTurnOptions<Row, Action> & Required<Pick<MultiTurnOptions<Row, Action>, "agent">>;

/**
 * The reward is what the environment's `score` says, else the sum of the steps' rewards; each step keeps its own.
 * `metrics.turns` counts model calls.
 *
 * @example
 * multiTurn<GridWorldRow>({ environment: (task) => gridWorld(task.row), maxSteps: 8, params: { maxTokens: 16 } })
 */
export function multiTurn<Row>(options: MultiTurnOptions<Row>): Workflow<Row>;
export function multiTurn<Row, Action>(options: WithAgent<Row, Action>): Workflow<Row>;
export function multiTurn<Row, Action>(options: MultiTurnOptions<Row, Action>): Workflow<Row> {
  return async (task, { model, signal, random, stage, tearDown, maxSteps }) => {
    stage("set-up");
    const environment = await options.environment(task);
    tearDown(() => environment.close?.());
    // Without an agent, Action is Reply: the overloads see to it.
    const agent = (await options.agent?.(task)) ?? (chatAgent() as unknown as Agent<Action>);
    const context: EnvironmentContext = { signal, random };
    agent.observe(await environment.reset(context));

    const steps: EnvironmentStep[] = [];
    const params: CallParams = { ...options.params, ...(environment.tools ? { tools: environment.tools } : {}) };
    const most = Math.min(options.maxSteps ?? Number.POSITIVE_INFINITY, maxSteps);
    let ending: Ending | undefined;
    while (ending === undefined) {
      if (steps.length >= most) {
        ending = { termination: "max_turns_exceeded", why: `not done after ${most} turns` };
        break;
      }
      stage("agent");
      const reply = await model.chat(agent.messages, params).catch(endedByLimit);
      if ("termination" in reply) {
        ending = reply;
        break;
      }
      const action = agent.act(reply);
      stage("environment");
      const step = checkStep(await environment.step(action, context));
      steps.push(step);
      if (step.done) ending = { termination: "env_done" };
      else if (reply.stopReason === "length" && params.maxTokens === undefined) {
        ending = { termination: "max_response_length_exceeded", why: "a reply was cut off" };
      } else agent.observe(step.observation);
    }
    stage("reward");
    const scored = await environment.score?.(context);
    return toOutcome(steps, scored, ending);
  };
}

/** The whole conversation after the first prompt shares `data.max_response_length`. */
export function cumulative<Row>(options: MultiTurnOptions<Row>): Workflow<Row>;
export function cumulative<Row, Action>(options: WithAgent<Row, Action>): Workflow<Row>;
export function cumulative<Row, Action>(options: MultiTurnOptions<Row, Action>): Workflow<Row> {
  return multiTurn({ ...options, params: { ...options.params, budget: "conversation" } } as WithAgent<Row, Action>);
}

interface Ending {
  termination: NonNullable<Outcome["termination"]>;
  why?: string;
}

/** What was done until then keeps its worth. */
function endedByLimit(error: unknown): Ending {
  if (!(error instanceof RolloutEnded)) throw error;
  return { termination: error.reason as Ending["termination"], why: error.message };
}

function toOutcome(steps: readonly EnvironmentStep[], scored: number | Outcome | undefined, ending: Ending): Outcome {
  const last = steps.at(-1);
  const rewards = steps.map(({ reward }) => reward);
  const known = rewards.filter((reward) => reward !== null);
  const sum =
    known.length < rewards.length || rewards.length === 0 ? null : known.reduce((total, one) => total + one, 0);
  const own: Outcome =
    scored === undefined ? { reward: sum } : typeof scored === "number" ? { reward: scored } : { ...scored };
  const explanation = [own.explanation ?? last?.explanation, ending.why]
    .filter((text) => text !== undefined)
    .join("; ");
  const correct = own.correct ?? (last === undefined ? undefined : (last.correct ?? (last.done ? undefined : false)));
  return {
    ...own,
    ...(correct === undefined ? {} : { correct }),
    ...(explanation === "" ? {} : { explanation }),
    metrics: { turns: steps.length, ...last?.metrics, ...own.metrics },
    stepRewards: { ...(steps.length > 0 ? { agent: rewards } : {}), ...own.stepRewards },
    termination: own.termination ?? ending.termination,
  };
}
