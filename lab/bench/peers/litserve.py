"""Echo and the small network behind LitServe, each in one worker process: ``python -m lab.bench.peers.litserve PORT``."""

import sys
from typing import Any

from litserve import LitAPI, LitServer

from lab.bench import functions


class Echo(LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:
        pass

    def predict(self, inputs: Any) -> Any:
        return inputs


class Conv(LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:  # noqa: ARG002 - on one core by design
        self._network = functions.build_conv()

    def predict(self, inputs: Any) -> Any:
        return {"y": self._network([inputs["v"]])[0]}


def main() -> None:
    server = LitServer([Echo(api_path="/echo"), Conv(api_path="/conv")], accelerator="cpu")
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=1,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )


if __name__ == "__main__":
    main()
