"""A program that answers requests, one JSON object per line on standard input and output: the other side of `src/base/resident.ts`.

In:  {"id", ...} | {"id", "cancel": true}
Out: {"id", "result"} | {"id", "error", "kind"}; before that, any number of {"id", ...}
"""

import asyncio
import json
import os

# The protocol's streams are not those of the programs that are started: they would read requests, or write among answers.
requests = os.fdopen(os.dup(0))
protocol = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)


def send(**message):
    protocol.write(json.dumps(message) + "\n")


async def serve(answer):
    """Sends what `answer(request)` returns. Ends, and with it all requests, when the input ends."""

    async def reply(request):
        number = request["id"]
        try:
            send(id=number, result=await answer(request))
        except asyncio.CancelledError:
            send(id=number, error="it was stopped", kind="Cancelled")
        except BaseException as error:  # SystemExit of a library's checks, too
            send(id=number, error=str(error) or repr(error), kind=type(error).__name__)

    reader = asyncio.StreamReader(limit=2**26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), requests)
    running = {}
    while line := await reader.readline():
        request = json.loads(line)
        number = request["id"]
        if request.get("cancel"):
            if number in running:
                running[number].cancel()
            continue
        running[number] = asyncio.create_task(reply(request))
        running[number].add_done_callback(lambda _, number=number: running.pop(number, None))
    for task in list(running.values()):
        task.cancel()
    await asyncio.gather(*running.values(), return_exceptions=True)
