/** All families of recorded cases. */
import { advantageFamilies } from "./advantages.ts";
import { distillationFamilies } from "./distillation.ts";
import type { Families } from "./family.ts";
import { klFamilies } from "./kl.ts";
import { lossFamilies } from "./losses.ts";
import { moreLossFamilies } from "./more-losses.ts";
import { offPolicyFamilies } from "./off-policy.ts";
import { rewardFamilies } from "./rewards.ts";
import { scheduleFamilies } from "./schedules.ts";
import { supervisedFamilies } from "./supervised.ts";
import { trajectoryFamilies } from "./trajectories.ts";
import { valueFamilies } from "./values.ts";

export const families: Families = {
  ...advantageFamilies,
  ...rewardFamilies,
  ...lossFamilies,
  ...moreLossFamilies,
  ...klFamilies,
  ...valueFamilies,
  ...offPolicyFamilies,
  ...scheduleFamilies,
  ...supervisedFamilies,
  ...trajectoryFamilies,
  ...distillationFamilies,
};
