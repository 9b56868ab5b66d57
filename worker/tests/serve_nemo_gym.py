"""Serves NeMo Gym's example of a tool in one process: its resources server, its agent server, and its model server.

Arguments: the address of the model, and the ports of the agent server, the two others, and the head.
"""

import asyncio
import json
import os
import sys

import uvicorn
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf
from resources_servers.example_single_tool_call.app import SimpleWeatherResourcesServer
from responses_api_agents.simple_agent.app import SimpleAgent
from responses_api_models.openai_model.app import SimpleModelServer

HOST = "127.0.0.1"


def main(base_url, agent, resources, model, head):
    ports = {"resources_servers": resources, "responses_api_agents": agent, "responses_api_models": model}
    names = {"resources_servers": "weather", "responses_api_agents": "agent", "responses_api_models": "policy"}
    where = {
        names[kind]: {kind: {names[kind]: {"host": HOST, "port": number, "entrypoint": "app.py"}}}
        for kind, number in ports.items()
    }
    # Else it would read its settings from this program's arguments.
    os.environ["NEMO_GYM_CONFIG_DICT"] = json.dumps(where)
    client = ServerClient(head_server_config=BaseServerConfig(host=HOST, port=head), global_config_dict=OmegaConf.create(where))
    more = {
        "responses_api_agents": {
            "resources_server": {"type": "resources_servers", "name": "weather"},
            "model_server": {"type": "responses_api_models", "name": "policy"},
            "max_steps": 3,
        },
        "responses_api_models": {"openai_base_url": base_url, "openai_api_key": "none", "openai_model": "policy"},
    }
    classes = {
        "resources_servers": SimpleWeatherResourcesServer,
        "responses_api_agents": SimpleAgent,
        "responses_api_models": SimpleModelServer,
    }

    async def serve():
        apps = []
        for kind, server in classes.items():
            settings = {"name": names[kind], "host": HOST, "port": ports[kind], "entrypoint": "app.py", **more.get(kind, {})}
            config = server.model_fields["config"].annotation(**settings)
            app = server(config=config, server_client=client).setup_webserver()
            apps.append(uvicorn.Server(uvicorn.Config(app, host=HOST, port=ports[kind], log_level="warning")).serve())
        await asyncio.gather(*apps)

    asyncio.run(serve())


main(sys.argv[1], *map(int, sys.argv[2:]))
