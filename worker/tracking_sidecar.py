"""Sends a run's metrics to Weights & Biases, MLflow or Trackio through its official client; the first argument names it.

Reads JSON lines from standard input: {"op": "init", ...}, {"op": "log", "step", "metrics"},
{"op": "table", "step", "name", "columns", "data"}, {"op": "histogram", "step", "name", "edges", "counts"},
{"op": "image", "step", "name", "file"}, {"op": "finish", "exit_code"}.
Writes JSON lines to standard output: {"event": "ready", "mode", "url", "directory"}, {"event": "finished"} or
{"event": "error", "kind": "missing" | "login" | "failed", "message"}. The client's prints go to standard error.
"""
import json
import os
import re
import signal
import sys
from typing import Any, Callable, Iterator, Protocol, TextIO

Message = dict[str, Any]

NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Refused(Exception):
    """The run cannot begin. `kind` is that of the `error` event."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Run(Protocol):
    ready: Message

    def log(self, step: int, metrics: dict[str, float]) -> None: ...
    def table(self, step: int, name: str, columns: list[str], data: list[list[Any]]) -> None: ...
    def histogram(self, step: int, name: str, edges: list[float], counts: list[int]) -> None: ...
    def image(self, step: int, name: str, file: str) -> None: ...
    def finish(self, exit_code: int) -> None: ...


class WandbRun:
    """The same id continues the same run."""

    def __init__(self, message: Message) -> None:
        import wandb
        from wandb.errors import AuthenticationError, UsageError

        self.client = wandb
        settings = wandb.Settings(
            console="off", disable_git=True, disable_code=True, init_timeout=message["timeout_seconds"]
        )
        try:
            self.run = wandb.init(
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
        saved = self.run.settings
        self.ready = {"mode": saved.mode, "url": self.run.url, "directory": saved.sync_dir}

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        self.run.log(metrics, step=step)

    def table(self, step: int, name: str, columns: list[str], data: list[list[Any]]) -> None:
        self.log(step, {name: self.client.Table(columns=columns, data=data)})

    def histogram(self, step: int, name: str, edges: list[float], counts: list[int]) -> None:
        self.log(step, {name: self.client.Histogram(np_histogram=(counts, edges))})

    def image(self, step: int, name: str, file: str) -> None:
        self.log(step, {name: self.client.Image(file)})

    def finish(self, exit_code: int) -> None:
        self.run.finish(exit_code=exit_code)


class TrackioRun(WandbRun):
    """Trackio has the interface of wandb. It knows a run by its name, so the id is the name."""

    def __init__(self, message: Message) -> None:
        import trackio
        from huggingface_hub.errors import LocalTokenNotFoundError

        self.client = trackio
        try:
            self.run = trackio.init(
                project=message["project"],
                name=message["id"],
                group=message["name"],
                config=message["config"],
                resume="allow",
                embed=False,
            )
        except LocalTokenNotFoundError as error:
            raise Refused("login", str(error)) from error
        self.ready = {"mode": "online" if self.run.url else "offline", "url": self.run.url, "directory": ""}

    def finish(self, exit_code: int) -> None:
        self.run.finish()


class MlflowRun:
    """The tag `hone.run` holds the id, so the same id continues the same run.

    MLflow has no histograms and no tables of its own: they are JSON files among the run's artifacts, by step.
    """

    NAME = re.compile(r"[^\w\-./ :]")
    LONGEST_PARAMETER = 6000

    def __init__(self, message: Message) -> None:
        import mlflow
        from mlflow.exceptions import MlflowException

        self.client = mlflow
        # By default MLflow tries for minutes to reach a server that does not answer. Later requests may.
        retries = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
        fewer = retries not in os.environ
        if fewer:
            os.environ[retries] = "2"
        try:
            experiment = mlflow.set_experiment(message["project"]).experiment_id
            tracking = mlflow.MlflowClient()
            found = tracking.search_runs([experiment], f"tags.`hone.run` = '{message['id']}'", max_results=1)
            # start_run alone would add the git commit of Hone, not that of the user's project.
            run = found[0] if found else tracking.create_run(
                experiment, run_name=message["name"], tags={"hone.run": message["id"]}
            )
            mlflow.start_run(run_id=run.info.run_id, log_system_metrics=False)
            # A parameter never changes, so a resumed run keeps its first ones; config.json is always the newest.
            if not found:
                mlflow.log_params(dict(self.parameters(message["config"])))
            mlflow.log_dict(message["config"], "config.json")
        except MlflowException as error:
            refused = error.error_code in ("UNAUTHENTICATED", "PERMISSION_DENIED") or "error code 401" in str(error)
            raise Refused("login" if refused else "failed", str(error)) from error
        finally:
            if fewer:
                del os.environ[retries]
        self.ready = {"mode": "online", "url": mlflow.get_tracking_uri(), "directory": run.info.artifact_uri}

    def name(self, name: str) -> str:
        """MLflow allows letters, digits and `_-./ :`."""
        return self.NAME.sub("_", name)

    def parameters(self, value: Any, path: str = "") -> Iterator[tuple[str, str]]:
        """The values of the configuration by dotted path, except those that are too long for MLflow."""
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from self.parameters(inner, f"{path}.{key}" if path else key)
        elif len(str(value)) <= self.LONGEST_PARAMETER and len(path) <= 250:
            yield self.name(path), str(value)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.client.log_metrics({self.name(name): value for name, value in metrics.items()}, step=step)

    def file(self, step: int, name: str, content: Message) -> None:
        self.client.log_dict(content, f"{name}/step-{step:06}.json")

    def table(self, step: int, name: str, columns: list[str], data: list[list[Any]]) -> None:
        self.file(step, name, {"columns": columns, "data": data})

    def histogram(self, step: int, name: str, edges: list[float], counts: list[int]) -> None:
        self.file(step, name, {"edges": edges, "counts": counts})

    def image(self, step: int, name: str, file: str) -> None:
        # A curve's file is replaced at each step, so the artifact is the newest curve.
        self.client.log_artifact(file, "plots")

    def finish(self, exit_code: int) -> None:
        self.client.end_run("FINISHED" if exit_code == 0 else "FAILED")


CLIENTS: dict[str, Callable[[Message], Run]] = {"wandb": WandbRun, "mlflow": MlflowRun, "trackio": TrackioRun}


def own_output() -> TextIO:
    """Reserves standard output for this program: a library's prints go to standard error."""
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return output


def start_run(client: str, message: Message) -> Run:
    try:
        return CLIENTS[client](message)
    except Refused:
        raise
    except ImportError as error:
        raise Refused("missing", str(error)) from error
    except Exception as error:  # network, server, disk: the clients' errors have no common base
        raise Refused("failed", f"{type(error).__name__}: {error}") from error


def main() -> int:
    output = own_output()
    # The trainer handles Ctrl-C, and sends "finish" when it has stopped.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def say(**message: Any) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    run: Run | None = None
    exit_code = 1  # if the trainer ends without "finish"
    for line in sys.stdin:
        message = json.loads(line)
        op = message.pop("op")
        if op == "init":
            try:
                run = start_run(sys.argv[1], message)
            except Refused as refused:
                say(event="error", kind=refused.kind, message=str(refused))
                return 1
            say(event="ready", **run.ready)
        elif op == "finish":
            exit_code = message["exit_code"]
            break
        elif op == "log":
            run.log(message["step"], {name: NOT_FINITE.get(value, value) for name, value in message["metrics"].items()})
        else:
            {"table": run.table, "histogram": run.histogram, "image": run.image}[op](**message)
    if run is not None:
        run.finish(exit_code)
        say(event="finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
