/** Weights that may differ by role. */
import { own } from "../../own.ts";

/** One weight for all roles, or a weight per role. */
export type RoleWeights = number | Readonly<Record<string, number>>;

/** @returns undefined if the role is not named */
export function weightOf(weights: RoleWeights, role: string): number | undefined {
  return typeof weights === "number" ? weights : own<number>(weights, role);
}

export const namedRoles = (weights: RoleWeights): string[] => (typeof weights === "number" ? [] : Object.keys(weights));
