"""`ray start --head`, with a raylet that does not wait for its agents to report their ports.

Ray 2.60 gives an agent 15 s to write its ports into files, without a setting for this time; then the raylet ends. With
given ports it does not wait. `ray start` passes all of them to the raylet, except the agent's listening port."""

from typing import Any

from ray import _raylet
from ray._private import services
from ray.scripts.scripts import main

# The dashboard's agent has no HTTP server in an environment without Ray's dashboard.
_NO_PORT = ["--dashboard_agent_listen_port=-1"]


def _start(command: list[str], process_type: str, *arguments: Any, **settings: Any) -> Any:
    waits = process_type == "raylet" and hasattr(_raylet, "wait_for_persisted_port")
    return _original(command + (_NO_PORT if waits else []), process_type, *arguments, **settings)


if __name__ == "__main__":
    _original, services.start_ray_process = services.start_ray_process, _start
    main()
