"""
Echo and the small network behind MLServer: ``python -m lab.bench.peers.mlserver PORT``.

The models run in the server's process, which is faster than in a worker process of its own. They have routes of their
own, so that their input is the JSON of the other peers and not the Open Inference Protocol's.
"""

import asyncio
import sys
from typing import Any

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.handlers import custom_handler

from lab.bench import functions
from lab.bench.ports import free_port


class Echo(MLModel):  # type: ignore[misc]
    @custom_handler(rest_path="/echo")  # type: ignore[untyped-decorator]
    async def echo(self, body: dict[str, Any]) -> Any:
        return body


class Conv(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        self._network = functions.build_conv()
        return True

    @custom_handler(rest_path="/conv")  # type: ignore[untyped-decorator]
    async def conv(self, body: dict[str, Any]) -> Any:
        return {"y": self._network([body["v"]])[0]}


def main() -> None:
    server = MLServer(
        Settings(
            debug=False,
            host="127.0.0.1",
            http_port=int(sys.argv[1]),
            grpc_port=free_port(),
            metrics_endpoint=None,
            parallel_workers=0,
        )
    )
    models = [ModelSettings(name=each.__name__.lower(), implementation=each) for each in (Echo, Conv)]
    asyncio.run(server.start(models))


if __name__ == "__main__":
    main()
