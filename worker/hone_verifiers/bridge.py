"""Runs episodes of a verifiers environment for Hone, one JSON object per line on standard input and output.

Argument: the environment's configuration (verifiers' `[env]` block) as JSON.
In:  {"id", "tasks": limit} | {"id", "task": index, "base_url", "api_key"} | {"id", "cancel": true}
Out: {"id", "result"} | {"id", "error", "kind"}
It ends, and with it all episodes, when its input ends.
"""

import asyncio
import itertools
import json
import os
import sys

# The protocol's streams are not those of the programs that verifiers starts.
requests = os.fdopen(os.dup(0))
protocol = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
# verifiers prepares its agents with uv, which is installed beside it.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])

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


async def answer(env, tasks, request):
    number, reply = request["id"], {}
    try:
        if "tasks" in request:
            if request["tasks"] is None and not env.taskset.bounded:
                raise ValueError("the taskset has no end: give a number of tasks")
            found = tasks.first(request["tasks"])
            reply["result"] = [{"index": i, "name": t.data.name, "key": t.key} for i, t in enumerate(found)]
        else:
            reply["result"] = await episode(env, tasks, request)
    except asyncio.CancelledError:
        reply = {"error": "the episode was stopped", "kind": "Cancelled"}
    except BaseException as error:
        reply = {"error": str(error) or repr(error), "kind": type(error).__name__}
    protocol.write(json.dumps({"id": number, **reply}) + "\n")


async def main():
    reader = asyncio.StreamReader(limit=2**26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), requests)
    env, running = load_environment(configured(json.loads(sys.argv[1]))), {}
    tasks = Tasks(env.taskset)
    async with env.serving():
        while line := await reader.readline():
            request = json.loads(line)
            number = request["id"]
            if request.get("cancel"):
                if number in running:
                    running[number].cancel()
                continue
            running[number] = asyncio.create_task(answer(env, tasks, request))
            running[number].add_done_callback(lambda _, number=number: running.pop(number, None))
        for task in list(running.values()):
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
