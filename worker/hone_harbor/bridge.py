"""Runs Harbor trials for Hone, one JSON object per line on standard input and output.

In:  {"id", "trial": TrialConfig, "guard": bool, "mounted_agent": bool} | {"id", "cancel": true}
Out: {"id", "event"} | {"id", "log", "phase"} | {"id", "result"} | {"id", "error", "kind"}
It ends, and with it all trials, when its input ends.
"""

import asyncio
import json
import os
import sys

os.environ.setdefault("HARBOR_TELEMETRY", "0")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# Compose programs that are installed beside Harbor.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
# Agents of Hone's own: hone_harbor.shell_agent.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from harbor.models.trial.config import TrialConfig  # noqa: E402
from harbor.trial.hooks import TrialEvent  # noqa: E402
from harbor.trial.trial import Trial  # noqa: E402

# Only protocol lines are written to standard output; whatever a library prints goes to standard error.
protocol = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

# Each process of the container as PID:START, because a number is used again.
LIST = r"""for p in /proc/[0-9]*; do
  s=$(cat $p/stat 2>/dev/null) || continue; s=${s##*) }; set -- $s; shift 19; echo "${p#/proc/}:$1"
done"""

# Stops everything that is not in KEEP before killing it, so that nothing can fork in between.
END = (
    r"""me=$$; round=0; while [ $round -lt 40 ]; do round=$((round+1)); left=""; for p in /proc/[0-9]*; do
  n=${p#/proc/}; s=$(cat $p/stat 2>/dev/null) || continue; s=${s##*) }; set -- $s; state=$1; parent=$2; shift 19
  case " $KEEP " in *" $n:$1 "*) continue;; esac
  [ "$n" = "$me" ] || [ "$parent" = "$me" ] || [ "$n" = "$PPID" ] || [ "$state" = Z ] && continue
  left="$left $n"
done; [ -z "$left" ] && exit 0; kill -STOP $left 2>/dev/null; kill -KILL $left 2>/dev/null; done; echo "$left"; exit 9"""
)


def send(**message):
    protocol.write(json.dumps(message) + "\n")


class Guard:
    """Ends the processes that the agent has left when its time is over, before anything is verified."""

    def __init__(self, trial, request):
        self.trial, self.request, self.kept = trial, request, ""

    async def shell(self, command, env=None):
        return await self.trial.agent_environment.exec(command, env=env, user="root", timeout_sec=60)

    async def start(self, _):
        send(id=self.request["id"], event="agent-start")
        self.kept = " ".join((await self.shell(LIST)).stdout.split())

    async def end(self, _):
        send(id=self.request["id"], event="agent-end")
        timed_out = sys.exc_info()[0] is not None
        if not self.request.get("guard", True) and not timed_out:
            return
        ended = await self.shell(END, env={"KEEP": self.kept})
        if ended.return_code != 0:
            raise RuntimeError(f"processes of the agent could not be ended: {ended.stdout} {ended.stderr}")


async def run(request):
    number = request["id"]
    try:
        trial = await Trial.create(TrialConfig.model_validate(request["trial"]))
        if request.get("mounted_agent"):

            async def installed(environment):
                """The agent's program is mounted."""

            trial.agent.install = installed
        guard = Guard(trial, request)
        trial.add_hook(TrialEvent.AGENT_START, guard.start)
        trial.add_hook(TrialEvent.AGENT_END, guard.end)
        for event in (TrialEvent.ENVIRONMENT_START, TrialEvent.VERIFICATION_START):

            async def report(happened):
                send(id=number, event=happened.event.value)

            trial.add_hook(event, report)

        async def log(entry):
            send(id=number, log=entry.text, phase=entry.phase)

        trial.add_log_callback(log)
        result = await trial.run()
        summary = result.model_dump(
            mode="json", include={"verifier_result", "exception_info", "step_results", "agent_info", "agent_execution"}
        )
        cause = result.failure_cause
        send(id=number, result={**summary, "failure_cause": cause and cause.value, "reward_valid": result.reward_valid})
    except asyncio.CancelledError:
        send(id=number, error="the trial was stopped", kind="Cancelled")
    except BaseException as error:  # SystemExit of a preflight check, too
        send(id=number, error=str(error) or repr(error), kind=type(error).__name__)


async def main():
    reader = asyncio.StreamReader(limit=2**26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running = {}
    send(event="ready")
    while line := await reader.readline():
        request = json.loads(line)
        number = request["id"]
        if request.get("cancel"):
            if number in running:
                running[number].cancel()
            continue
        running[number] = asyncio.create_task(run(request))
        running[number].add_done_callback(lambda _, number=number: running.pop(number, None))
    for task in list(running.values()):
        task.cancel()
    await asyncio.gather(*running.values(), return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
