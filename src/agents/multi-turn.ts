/** Agent and environment take turns until the environment is done or a limit is reached. */
import type { Task } from "../data/task.ts";
import { chatAgent } from "./chat-agent.ts";
import { BadOutcome, RolloutEnded } from "./control-flow.ts";
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
  /** Maximum number of turns, if it is less than `rllm.agent.max_steps`. */
  maxSteps?: number | undefined;
  /** Parameters of each model call, e.g. `{ maxTokens: 64 }`. */
  params?: CallParams | undefined;
}

type WithAgent<Row, Action> = MultiTurnOptions<Row, Action> & Required<Pick<MultiTurnOptions<Row, Action>, "agent">>;

/**
 * The reward is the environment's `score`, or else the sum of the steps' rewards; each step keeps its own.
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
    // Without an agent, Action is Reply: the overloads ensure it.
    const agent = (await options.agent?.(task)) ?? (chatAgent() as unknown as Agent<Action>);
    const context: EnvironmentContext = { signal, random };
    agent.observe(await environment.reset(context));

    const steps: EnvironmentStep[] = [];
    const params: CallParams = { ...options.params };
    if (environment.tools) params.tools = environment.tools;
    const most = Math.min(options.maxSteps ?? Number.POSITIVE_INFINITY, maxSteps);
    let ending: Ending | undefined;
    while (ending === undefined) {
      stage("agent");
      const reply: Reply | Ending =
        steps.length >= most
          ? { termination: "max_turns_exceeded", why: `not done after ${most} turns` }
          : await model.chat(agent.messages, params).catch(endedByLimit);
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

/** The rewards until then still count. */
function endedByLimit(error: unknown): Ending {
  if (!(error instanceof RolloutEnded)) throw error;
  return { termination: error.reason as Ending["termination"], why: error.message };
}

function toOutcome(steps: readonly EnvironmentStep[], scored: number | Outcome | undefined, ending: Ending): Outcome {
  const last = steps.at(-1);
  const rewards = steps.map(({ reward }) => reward);
  const known = rewards.filter((reward) => reward !== null);
  const allKnown = known.length === rewards.length && rewards.length > 0;
  const sum = allKnown ? known.reduce((total, one) => total + one, 0) : null;
  const own: Outcome = typeof scored === "object" ? scored : { reward: scored ?? sum };
  const outcome: Outcome = {
    ...own,
    metrics: { turns: steps.length, ...last?.metrics, ...own.metrics },
    stepRewards: { ...own.stepRewards },
    termination: own.termination ?? ending.termination,
  };
  if (last) outcome.stepRewards = { agent: rewards, ...own.stepRewards };
  const explanation = [own.explanation ?? last?.explanation, ending.why].filter(Boolean).join("; ");
  if (explanation !== "") outcome.explanation = explanation;
  const correct = own.correct ?? last?.correct ?? (last?.done === false ? false : undefined);
  if (correct !== undefined) outcome.correct = correct;
  return outcome;
}

const form = "a step is { observation, reward, done }";

/** @throws BadOutcome naming the invalid part */
function checkStep(step: unknown): EnvironmentStep {
  if (typeof step !== "object" || step === null) {
    const missing = step === undefined ? " (is a return or an await missing?)" : "";
    throw new BadOutcome(`returned ${String(step)}${missing}; ${form}`);
  }
  const { reward, done } = step as Partial<EnvironmentStep>;
  if (reward !== null && (typeof reward !== "number" || !Number.isFinite(reward))) {
    throw new BadOutcome(`returned the reward ${String(reward)}; it must be a finite number, or null if unknown`);
  }
  if (typeof done !== "boolean")
    throw new BadOutcome(`returned done: ${String(done)}; it must be true or false; ${form}`);
  return step as EnvironmentStep;
}
