"""Sends a run's metrics to Weights & Biases through its SDK.

Reads JSON lines from standard input: {"op": "init", ...}, {"op": "log", "step", "metrics"},
{"op": "table", "step", "name", "columns", "data"}, {"op": "histogram", "step", "name", "edges", "counts"},
{"op": "image", "step", "name", "file"}, {"op": "finish", "exit_code"}.
Writes JSON lines to standard output: {"event": "ready", "mode", "url", "directory"}, {"event": "finished"} or
{"event": "error", "kind": "missing" | "login" | "failed", "message"}. The SDK's prints go to standard error.
"""
import json
import os
import signal
import sys
from typing import Any, TextIO

NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def own_output() -> TextIO:
    """Reserves standard output for this program: a library's prints go to standard error."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return output


class Refused(Exception):
    """The run cannot begin. `kind` is that of the `error` event."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def start_run(message: dict[str, Any]) -> Any:
    """Opens the run that an init message describes; the same id continues the same run."""
    try:
        import wandb
        from wandb.errors import AuthenticationError, UsageError
    except ImportError as error:
        raise Refused("missing", str(error)) from error
    settings = wandb.Settings(
        console="off", disable_git=True, disable_code=True, init_timeout=message["timeout_seconds"]
    )
    try:
        return wandb.init(
            entity=message["entity"],
            project=message["project"],
            name=message["name"],
            id=message["id"],
            config=message["config"],
            dir=message["directory"],
            mode=message.get("mode"),
            resume="allow",
            settings=settings,
        )
    except (AuthenticationError, UsageError) as error:
        raise Refused("login", str(error)) from error
    except Exception as error:  # network, server, disk: the SDK's errors have no common base
        raise Refused("failed", f"{type(error).__name__}: {error}") from error


def main() -> int:
    output = own_output()
    # The trainer handles Ctrl-C, and sends "finish" when it has stopped.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def say(**message: Any) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    run = None
    exit_code = 1  # if the trainer ends without "finish"
    for line in sys.stdin:
        message = json.loads(line)
        if message["op"] == "init":
            try:
                run = start_run(message)
            except Refused as refused:
                say(event="error", kind=refused.kind, message=str(refused))
                return 1
            say(event="ready", mode=run.settings.mode, url=run.url, directory=run.settings.sync_dir)
        elif message["op"] == "log":
            metrics = {name: NOT_FINITE.get(value, value) for name, value in message["metrics"].items()}
            run.log(metrics, step=message["step"])
        elif message["op"] == "table":
            import wandb

            table = wandb.Table(columns=message["columns"], data=message["data"])
            run.log({message["name"]: table}, step=message["step"])
        elif message["op"] == "histogram":
            import wandb

            bins = wandb.Histogram(np_histogram=(message["counts"], message["edges"]))
            run.log({message["name"]: bins}, step=message["step"])
        elif message["op"] == "image":
            import wandb

            run.log({message["name"]: wandb.Image(message["file"])}, step=message["step"])
        elif message["op"] == "finish":
            exit_code = message["exit_code"]
            break
    if run is not None:
        run.finish(exit_code=exit_code)
        say(event="finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
