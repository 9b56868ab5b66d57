/** Episodes, steps and groups for tests, with everything a test does not care about filled in. */
import type { Episode, Step, Trajectory, TrajectoryGroup } from "./types.ts";

/** A step that saw `prompt` and said `reply`. */
export function sampleStep(prompt: readonly number[], reply: readonly number[], changes: Partial<Step> = {}): Step {
  return {
    promptTokens: Int32Array.from(prompt),
    tokens: Int32Array.from(reply),
    logprobs: Float32Array.from(reply, (token) => -token / 8),
    policyVersion: 0,
    stopReason: "stop",
    text: "",
    messages: [],
    reward: null,
    ...changes,
  };
}

export function sampleTrajectory(changes: Partial<Trajectory> = {}): Trajectory {
  return { name: "solver", steps: [sampleStep([1, 2], [3])], reward: 0, ...changes };
}

/** @param id `"{task}:{rollout}"` */
export function sampleEpisode(id: string, changes: Partial<Episode> = {}): Episode {
  const [taskId = "", rollout = "0"] = id.split(":");
  return {
    id,
    taskId,
    rollout: Number(rollout),
    trajectories: [sampleTrajectory()],
    termination: "env_done",
    correct: null,
    metrics: {},
    retries: 0,
    seconds: 1,
    ...changes,
  };
}

/** A group whose members have these rewards and one step each. @param id `"{task}:{role}"` */
export function rewardGroup(id: string, rewards: readonly number[]): TrajectoryGroup {
  const [taskId = "", role = ""] = id.split(":");
  const members = rewards.map((reward, rollout) => {
    const trajectory = sampleTrajectory({ name: role, reward });
    return { episode: sampleEpisode(`${taskId}:${rollout}`, { trajectories: [trajectory] }), trajectory, reward };
  });
  return { id, taskId, role, members };
}
