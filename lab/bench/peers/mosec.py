"""
Echo and the small network behind Mosec, each in one worker process: ``python -m lab.bench.peers.mosec PORT``.

``/echo32`` takes batches of up to 32; Mosec waits :data:`COMPANY_MS` for one to fill.
"""

import os
import sys
from typing import Any, Final

from mosec import Runtime, Server, Worker

from lab.bench import functions

#: The shortest that it knows: 0 stands for its default of 10.
COMPANY_MS: Final = 1


class Echo(Worker):  # type: ignore[misc]
    def forward(self, data: Any) -> Any:
        return data


class Conv(Worker):  # type: ignore[misc]
    def __init__(self) -> None:
        self._network = functions.build_conv()

    def forward(self, data: Any) -> Any:
        return {"y": self._network([data["v"]])[0]}


def main() -> None:
    # It has these settings from its own command line and from the environment alone.
    os.environ |= {"MOSEC_ADDRESS": "127.0.0.1", "MOSEC_PORT": sys.argv.pop(), "MOSEC_LOG_LEVEL": "warning"}
    server = Server()
    batching = Runtime(Echo, max_batch_size=32, max_wait_time=COMPANY_MS)
    server.register_runtime({"/echo": [Runtime(Echo)], "/echo32": [batching], "/conv": [Runtime(Conv)]})
    server.run()


if __name__ == "__main__":
    main()
