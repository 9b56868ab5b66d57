/** A rule about settings. Start-up checks, `hone config --explain`, dry runs and the reference pages all read the same rules. */
import type { AdvantageOptions } from "../algorithms/advantages/estimate-advantages.ts";
import type { CustomLoss } from "../algorithms/policy-loss/custom-loss.ts";
import type { ComposedConfig } from "../config/compose.ts";
import type { Backend } from "../config/schema/about.ts";
import type { Config } from "../config/schema.ts";
import type { Capabilities } from "./engine.ts";

/**
 * `invalid`: the settings contradict each other, on every backend and machine. `unsupported`: this engine or machine
 * cannot do it. `no effect`: nothing reads the setting, because of another one.
 */
export type Outcome = "invalid" | "unsupported" | "no effect";

export interface Rule {
  outcome: Outcome;
  /** The settings that the rule is about, at values other than their defaults. */
  keys: readonly string[];
  /** The condition, after "it requires". Absent: `because` says why, or only the backends that have it are named. */
  requires?: string;
  /** Why this value cannot be used. */
  because?(situation: Situation, value: unknown): string;
  /** Which values or engines the rule is about, if not all: "with gae". */
  when?: string;
  /**
   * Undefined: known only when the run begins.
   *
   * @param value of the key; undefined asks whether any value is possible
   */
  isMet(situation: Situation, value: unknown): boolean | undefined;
  /** What to set instead. */
  hint?: string;
  /** Whether it depends only on the backend and its capabilities, so that the backends that have them can be named. */
  byEngine?: true;
  /** Judged also if the setting has its default: a contradiction with the script, or among defaults. */
  atDefault?: true;
}

/** What rules judge. */
export interface Situation extends Pick<ComposedConfig, "config" | "origins"> {
  backend: Backend;
  capabilities: Capabilities;
  script: ScriptFacts | undefined;
  /** Names of estimators and losses of a script that is not loaded. */
  registered: readonly string[];
}

/** What is known of the experiment once its script is loaded. */
export interface ScriptFacts {
  estimators: NonNullable<AdvantageOptions["custom"]>;
  losses: Readonly<Record<string, CustomLoss>>;
  /** What it learns from; absent: rollouts. */
  source?: Config["training"]["source"];
  /** Whether it has a prompt for teachers, with which a model can teach itself. */
  teachesItself?: boolean;
  /** Tasks of the training dataset. */
  tasks: number;
  /** The name of the validation dataset, if there is one. */
  validation: string | undefined;
}
