/** All rules about settings. The first unmet rule of a key is the reason that is given. */
import { backendRules } from "../../backends/registry/open-engine.ts";
import type { Rule } from "../../backends/rule.ts";
import type { Config } from "../../config/schema.ts";
import { abilities } from "./abilities.ts";
import { conditions } from "./conditions.ts";
import { contradictions } from "./contradictions.ts";
import { distillationRules } from "./distillation.ts";
import { metadataRules } from "./metadata.ts";
import { sources } from "./sources.ts";

/** Rules that hold on every backend. */
export const sharedRules: readonly Rule[] = [
  ...metadataRules,
  ...abilities,
  ...contradictions,
  ...sources,
  ...distillationRules,
  ...conditions,
];

export const rulesOf = (config: Config): readonly Rule[] => [...backendRules(config), ...sharedRules];
