"""Downloads a data set of Harbor: NAME@VERSION [REGISTRY], a file or an address. The last line is a JSON list of the tasks' folders."""

import asyncio
import json
import sys
from pathlib import Path

from harbor.registry.client.factory import RegistryClientFactory


def main(name, registry=None):
    where = {}
    if registry is not None:
        is_address = registry.startswith(("http://", "https://"))
        where = {"registry_url": registry} if is_address else {"registry_path": Path(registry)}
    items = asyncio.run(RegistryClientFactory.create(**where).download_dataset(name))
    print(json.dumps([str(item.downloaded_path) for item in items]))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
