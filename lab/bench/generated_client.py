"""
A client that openapi-python-client generates from a gateway's own document, run by the Python that has the generator:
``python lab/bench/generated_client.py URL KEY``. It deploys a function, invokes it, asks what would become of a call, and
waits for one that it did not wait for at first. What it got is printed as one line of JSON; the exit code is 1 where that
is not :data:`WANTED`.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx

NAME: Final = "generated"
GIVEN: Final = {"x": [1, 2]}
WANTED: Final = {
    "deployed": 1,
    "output": GIVEN,
    "outputs": [1, 2],
    "feasible": True,
    "waited": ["Accepted", "succeeded", GIVEN],
}


def generate(url: str, folder: Path) -> None:
    """Write the package ``client`` into ``folder``."""
    document = folder / "openapi.json"
    document.write_bytes(httpx.get(f"{url}/openapi.json", timeout=60).raise_for_status().content)
    command: list[str | Path] = [
        Path(sys.executable).with_name("openapi-python-client"),
        "generate",
        "--path",
        document,
    ]
    subprocess.run([*command, "--output-path", folder / "client", "--meta", "none"], check=True, capture_output=True)


def use(url: str, key: str) -> dict[str, Any]:
    """What the operations answered."""
    client = importlib.import_module("client").AuthenticatedClient(base_url=url, token=key, timeout=120)
    models = importlib.import_module("client.models")

    def call(group: str, operation: str, *path: str, **how: Any) -> Any:
        module = importlib.import_module(f"client.api.{group}.{operation}")
        return module.sync(*path, client=client, **how)

    spec = {"entrypoint": "lab.bench.functions:Echo", "slo": {"deadline": "10s"}}
    document = {"apiVersion": "smore/v1", "kind": "Function", "metadata": {"name": NAME}, "spec": spec}
    body = models.Call(input_=GIVEN, deadline_ms=10_000)
    invocations, run = "invocations", "invoke_v1_functions_function_invocations_post"
    deployed = call("functions", "deploy_v1_functions_function_put", NAME, body=models.FunctionBody.from_dict(document))
    result = call(invocations, run, NAME, body=body)
    several = call(invocations, run, NAME, body=models.Calls(inputs=[1, 2]))
    trial = call(invocations, "dry_run_v_1_functions_function_invocations_dry_run_post", NAME, body=models.Rows(rows=1))
    accepted = call(invocations, run, NAME, body=body, prefer="respond-async")
    ended = call(invocations, "get_invocation_v1_invocations_invocation_get", accepted.id, wait=20.0)
    return {
        "deployed": deployed.revision,
        "output": result.output,
        "outputs": [each.output for each in several.invocations],
        "feasible": trial.feasible,
        "waited": [type(accepted).__name__, ended.state.value, ended.output],
    }


def main() -> None:
    url, key = sys.argv[1:]
    with TemporaryDirectory(prefix="smore-client-") as folder:
        generate(url, Path(folder))
        sys.path.insert(0, folder)
        found = use(url, key)
    print(json.dumps(found))
    sys.exit(found != WANTED)


if __name__ == "__main__":
    main()
