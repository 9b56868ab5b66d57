"""Runs Harbor trials for Hone, with the protocol of `resident.py`.

Request: {"trial": TrialConfig, "guard": bool, "mounted_agent": bool}
Reports: {"event"} | {"log", "phase"}
"""

import asyncio
import os
import re
import sys

os.environ.setdefault("HARBOR_TELEMETRY", "0")
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# podman-compose is installed beside Harbor, and called by Hone's own.
here, installed = os.path.dirname(os.path.abspath(__file__)), os.path.dirname(sys.executable)
os.environ["PATH"] = os.pathsep.join([os.path.join(here, "bin"), os.environ.get("PATH", "")])
os.environ["HONE_PODMAN_COMPOSE"] = os.path.join(installed, "podman-compose")
# Also agents of Hone's own: hone_harbor.shell_agent.
sys.path.append(os.path.dirname(here))

from resident import send, serve  # noqa: E402 - before Harbor starts programs

from harbor.agents.installed.base import NonZeroAgentExitCodeError  # noqa: E402
from harbor.models.trial.config import TrialConfig  # noqa: E402
from harbor.trial.hooks import TrialEvent  # noqa: E402
from harbor.trial.trial import Trial  # noqa: E402
from hone_harbor import logs, rewards  # noqa: E402

rewards.install()

# Each process of the container as PID:START, because a number is used again. "tests": the image has a folder of that name.
LIST = r"""[ -e /tests ] && echo tests; for p in /proc/[0-9]*; do
  s=$(cat $p/stat 2>/dev/null) || continue; s=${s##*) }; set -- $s; shift 19; echo "${p#/proc/}:$1"
done"""

# At first the kernel stops all processes but this one at once, so that a process which always forks cannot escape. In the
# machine's own numbers of processes, that would stop the machine. Then removes what the agent laid out for the verifier.
END = (
    r"""me=$$; round=0; name=""; [ -r /proc/2/stat ] && read -r _ name _ < /proc/2/stat
  [ "$name" = "(kthreadd)" ] && echo "the container has the machine's processes" && exit 8
  kill -STOP -1 2>/dev/null; while [ $round -lt 40 ]; do round=$((round+1)); left=""; for p in /proc/[0-9]*; do
  n=${p#/proc/}; s=$(cat $p/stat 2>/dev/null) || continue; s=${s##*) }; set -- $s; state=$1; parent=$2; shift 19
  case " $KEEP " in *" $n:$1 "*) continue;; esac
  [ "$n" = "$me" ] || [ "$parent" = "$me" ] || [ "$n" = "$PPID" ] || [ "$state" = Z ] && continue
  left="$left $n"
done; if [ -z "$left" ]; then
  kill -CONT -1 2>/dev/null; case " $KEEP " in *" tests "*) ;; *) rm -rf /tests || exit 7;; esac
  rm -rf /logs/verifier/reward.json /logs/verifier/reward.txt && bash -c : ; exit
fi; kill -KILL $left 2>/dev/null; done; kill -CONT -1 2>/dev/null; echo "$left"; exit 9"""
)

# What runs a verifier before any program of its task does, in a line of the engine's `diff`.
SHELL = re.compile(r"[AC] ((?:/usr)?/bin/(?:ba|da)?sh|/etc/ld\.so\.preload)")


class Guard:
    """Ends the agent's processes when its time is over, and what it has left before anything is verified."""

    def __init__(self, trial, request):
        self.trial, self.request = trial, request
        self.kept, self.container, self.timer, self.ending = "", None, None, asyncio.Lock()
        self.shells = set()

    async def shell(self, script, **variables):
        """As root in the container. On this machine by the engine itself, which takes half a second less than compose."""
        if self.container is None:
            done = await self.trial.agent_environment.exec(script, env=variables, user="root", timeout_sec=60)
            return done.return_code, done.stdout or ""
        flags = [flag for name, value in variables.items() for flag in ("-e", f"{name}={value}")]
        return await self.engine("exec", "-u", "0", *flags, self.container, "sh", "-c", script)

    async def engine(self, *args):
        program = self.trial.config.environment.type.value
        process = await asyncio.create_subprocess_exec(program, *args, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        return process.returncode, output.decode(errors="replace")

    async def is_running(self):
        if self.container is None:
            return False
        _, state = await self.engine("inspect", "--format", "{{.State.Running}}", self.container)
        return state.strip() == "true"

    async def changed_shells(self):
        """Seen from outside the container: a shell that the agent replaced would not tell."""
        if self.container is None:
            return set()
        _, lines = await self.engine("diff", self.container)
        return {match[1] for line in lines.splitlines() if (match := SHELL.fullmatch(line))}

    async def start(self, _):
        send(id=self.request["id"], event="agent-start")
        kind = self.trial.config.environment.type
        if self.container is None and kind is not None and kind.value in ("docker", "podman"):
            project = f"{self.trial.config.trial_name}__env".lower()
            labels = [f"label=com.docker.compose.{key}" for key in (f"project={project}", "service=main")]
            _, found = await self.engine("ps", "-q", "--filter", labels[0], "--filter", labels[1])
            self.container = found.strip() or None
        _, processes = await self.shell(LIST)
        self.kept = " ".join(processes.split())
        self.shells = await self.changed_shells()
        if (seconds := self.trial.agent_timeout_sec) is not None:
            self.timer = asyncio.create_task(self.end_in_time(seconds + 0.5))

    async def end_in_time(self, seconds):
        """Harbor first waits for the end of the agent's command, which may take seconds that the agent would use."""
        await asyncio.sleep(seconds)
        await asyncio.shield(self.end_all())

    async def end_all(self):
        """One after the other: each would end the other's shell."""
        async with self.ending:
            return await self.shell(END, KEEP=self.kept)

    async def end(self, _):
        send(id=self.request["id"], event="agent-end")
        is_over = sys.exc_info()[0] is not None
        if self.timer is not None and not self.timer.done():
            self.timer.cancel()
        guarded = self.request.get("guard", True)
        code, left = await self.end_all() if guarded or is_over else (0, "")
        await asyncio.to_thread(logs.clean, self.trial.paths)
        if guarded and (replaced := await self.changed_shells() - self.shells):
            raise NonZeroAgentExitCodeError(f"the agent replaced {', '.join(sorted(replaced))}, which starts the verifier")
        if code != 0:
            # In a container that goes on, the agent has broken the shell. Killed: 137.
            broken = code != 137 and await self.is_running()
            raise (NonZeroAgentExitCodeError if broken else RuntimeError)(f"processes of the agent could not be ended (exit code {code}): {left}")


async def run(request):
    number = request["id"]
    trial = await Trial.create(TrialConfig.model_validate(request["trial"]))
    if request.get("mounted_agent"):

        async def installed(environment):
            """The agent's program is mounted."""

        trial.agent.install = installed
    guard = Guard(trial, request)
    trial.add_hook(TrialEvent.AGENT_START, guard.start)
    trial.add_hook(TrialEvent.AGENT_END, guard.end)

    async def report(happened):
        send(id=number, event=happened.event.value)

    for event in (TrialEvent.ENVIRONMENT_START, TrialEvent.VERIFICATION_START):
        trial.add_hook(event, report)

    async def log(entry):
        send(id=number, log=entry.text, phase=entry.phase)

    trial.add_log_callback(log)
    result = await trial.run()
    cause = result.failure_cause
    return {
        **result.model_dump(mode="json", include={"verifier_result", "exception_info"}),
        "failure_cause": cause and cause.value,
        "reward_valid": result.reward_valid,
    }


if __name__ == "__main__":
    asyncio.run(serve(run))
