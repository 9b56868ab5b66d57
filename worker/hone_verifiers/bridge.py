"""Runs episodes of a verifiers environment for Hone, with the protocol of `resident.py`.

Argument: the environment's configuration (verifiers' `[env]` block) as JSON.
Request:  {"tasks": limit} | {"task": index, "base_url", "api_key"}
"""

import asyncio
import itertools
import json
import os
import sys

# verifiers prepares its agents with uv, which is installed beside it.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from resident import serve  # noqa: E402 - before verifiers starts programs

from verifiers.v1.clients import ModelContext  # noqa: E402
from verifiers.v1.configs.agent import agent_config_fields  # noqa: E402
from verifiers.v1.configs.client import EvalClientConfig  # noqa: E402
from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config  # noqa: E402


def configured(given):
    """Every seat without a harness or runtime of its own gets the given ones."""
    seats = env_config_type(given["taskset"]["id"], given.get("id", ""))()
    data = {**given, "retries": {"max_retries": 0, **given.get("retries", {})}}
    defaults = data.pop("seats")
    for name in agent_config_fields(seats):
        data[name] = {**defaults, **data.get(name, {})}
    return resolve_env_config(data)


class Tasks:
    """The tasks by index; those of an endless taskset are made when they are needed."""

    def __init__(self, taskset):
        self.rest, self.made = iter(taskset), []

    def first(self, count):
        missing = None if count is None else max(0, count - len(self.made))
        self.made.extend(itertools.islice(self.rest, missing))
        return self.made if count is None else self.made[:count]


async def episode(env, tasks, request):
    number, index = request["id"], request["task"]
    # verifiers reads keys from the environment only.
    variable = f"HONE_VERIFIERS_KEY_{number}"
    os.environ[variable] = request["api_key"]
    client = EvalClientConfig(base_url=request["base_url"], api_key_var=variable)
    try:
        found = tasks.first(index + 1)
        if len(found) <= index:
            raise ValueError(f"the taskset has no task {index}")
        done = await env.run_episode(found[index], ModelContext(model="policy", client=client))
    finally:
        del os.environ[variable]
    played = [trace for trace in done.traces if trace.agent.config.client == client]
    return {
        "ok": done.ok,
        "errors": [{"type": e.type, "message": e.message} for holder in (done, *done.traces) for e in holder.errors],
        "traces": [
            {
                "name": trace.agent.name,
                "stop": trace.stop_condition,
                "timeout": trace.is_timeout,
                "rewards": {name: reward and reward.value for name, reward in trace.rewards.items()},
                "metrics": trace.metrics,
            }
            for trace in played
        ],
    }


async def main():
    env = load_environment(configured(json.loads(sys.argv[1])))
    tasks = Tasks(env.taskset)

    async def answer(request):
        if "tasks" not in request:
            return await episode(env, tasks, request)
        if request["tasks"] is None and not env.taskset.bounded:
            raise ValueError("the taskset has no end: give a number of tasks")
        found = tasks.first(request["tasks"])
        return [{"index": i, "name": t.data.name, "key": t.key} for i, t in enumerate(found)]

    async with env.serving():
        await serve(answer)


if __name__ == "__main__":
    asyncio.run(main())
