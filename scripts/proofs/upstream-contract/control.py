"""Writes what the control routes of inference servers accept, for control.test.ts to compare with what Hone sends.

    python control.py vllm FIXTURE "vLLM 0.32.0"                   # in an environment with vLLM
    pip download --no-deps sglang==0.5.23 && unzip sglang-*.whl 'sglang/srt/managers/io_struct.py' 'sglang/srt/entrypoints/*'
    python control.py sglang FIXTURE "SGLang 0.5.23" sglang        # with msgspec; SGLang itself is not imported
    npx biome format --write FIXTURE                               # src/backends/servers/fixtures/control-routes.json

vLLM's routes come from the application that its own routers form. SGLang's come from the decorators of its HTTP server, their bodies
from the message types that these functions take: only the types' own source is run, because the modules need an accelerator.
"""

from __future__ import annotations

import ast
import json
import sys
import typing
from pathlib import Path

VLLM = (
    "/pause /resume /reset_prefix_cache /update_weight_version /weight_info /sleep /wake_up "
    "/v1/load_lora_adapter /v1/unload_lora_adapter "
    "/init_weight_transfer_engine /start_weight_update /update_weights /finish_weight_update"
).split()
SGLANG = (
    "/pause_generation /continue_generation /update_weights_from_disk /model_info /release_memory_occupation "
    "/resume_memory_occupation /load_lora_adapter /unload_lora_adapter"
).split()


def vllm() -> dict:
    import os

    os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    from fastapi import FastAPI
    from pydantic import TypeAdapter
    from vllm.distributed.weight_transfer import nccl_engine
    from vllm.entrypoints.rl.online.api_router import router
    from vllm.entrypoints.serve.dev.cache import api_router as cache
    from vllm.entrypoints.serve.dev.sleep import api_router as sleep
    from vllm.entrypoints.serve.lora import api_router as lora

    app = FastAPI()
    app.include_router(router)
    for module in (cache, sleep, lora):
        module.attach_router(app)
    described = app.openapi()
    schemas = described["components"]["schemas"]

    def body(operation: dict) -> dict | None:
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None:
            return None
        name = content["schema"].get("$ref", "").rsplit("/", 1)[-1]
        return schemas[name] if name else content["schema"]

    # These routes pass any object on, of which the transfer by NCCL makes one of its own types.
    parts = {"init_info": nccl_engine.NCCLWeightTransferInitInfo, "update_info": nccl_engine.NCCLWeightTransferUpdateInfo}
    for schema in schemas.values():
        for name in parts.keys() & schema.get("properties", {}).keys():
            part = TypeAdapter(parts[name]).json_schema()
            part.pop("description")
            schema["properties"][name] = {**part, "additionalProperties": False}

    return {
        path: {
            "method": method.upper(),
            "query": {one["name"]: one["schema"] for one in operation.get("parameters", []) if one["in"] == "query"},
            "body": body(operation),
        }
        for path in VLLM
        for method, operation in described["paths"][path].items()
    }


def sglang(package: Path) -> dict:
    import msgspec

    types = ast.parse((package / "srt/managers/io_struct.py").read_text())
    classes = {node.name: node for node in types.body if isinstance(node, ast.ClassDef)}
    names: dict[str, typing.Any] = {"msgspec": msgspec, "BaseReq": msgspec.Struct, **vars(typing)}

    def message(name: str) -> dict:
        node = classes[name]
        node.body = [line for line in node.body if isinstance(line, ast.AnnAssign)]
        exec(compile(ast.Module([node], []), name, "exec"), names)  # noqa: S102
        return msgspec.json.schema(names[name])["$defs"][name]

    server = ast.parse((package / "srt/entrypoints/http_server.py").read_text())
    routes = {}
    for function in server.body:
        for decorator in getattr(function, "decorator_list", []):
            path = decorator.args[0] if isinstance(decorator, ast.Call) and decorator.args else None
            if not (isinstance(path, ast.Constant) and path.value in SGLANG):
                continue
            taken = [argument for argument in function.args.args if argument.arg == "obj"]
            name = next((n.id for a in taken for n in ast.walk(a.annotation) if isinstance(n, ast.Name) and n.id in classes), None)
            method = "GET" if decorator.func.attr == "get" else "POST"
            routes[path.value] = {"method": method, "query": {}, "body": name and message(name)}
    return {path: routes[path] for path in SGLANG}


def without_titles(value):
    if isinstance(value, list):
        return [without_titles(each) for each in value]
    if not isinstance(value, dict):
        return value
    # A property may have one of these names; then it is a schema.
    return {k: without_titles(v) for k, v in value.items() if k not in ("title", "default") or isinstance(v, dict)}


if __name__ == "__main__":
    kind, fixture, server = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    routes = vllm() if kind == "vllm" else sglang(Path(sys.argv[4]))
    recorded = json.loads(fixture.read_text()) if fixture.exists() else {}
    recorded[kind] = {"server": server, "routes": without_titles(routes)}
    fixture.write_text(json.dumps(recorded, indent=1))
