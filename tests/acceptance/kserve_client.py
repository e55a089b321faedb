"""
KServe's own client against a platform, run by the Python that has it: ``python kserve_client.py URL KEY``.

Prints what it got as one line of JSON; test_oip.py says what that must be.
"""

import asyncio
import json
import sys

import httpx
import numpy as np
from kserve import InferenceRESTClient, InferInput, InferOutput, InferRequest, RESTConfig

TYPES = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT8": np.int8,
    "UINT16": np.uint16,
    "INT16": np.int16,
    "FP16": np.float16,
    "UINT32": np.uint32,
    "INT32": np.int32,
    "FP32": np.float32,
    "UINT64": np.uint64,
    "INT64": np.int64,
    "FP64": np.float64,
}


def inputs(binary: bool) -> list[InferInput]:
    tensors = []
    for name, dtype in TYPES.items():
        one = InferInput(name, [1, 2], name)
        # The client itself refuses half precision in JSON.
        one.set_data_from_numpy(np.array([[1, 0]], dtype), binary_data=binary or name == "FP16")
        tensors.append(one)
    texts = InferInput("BYTES", [1, 2], "BYTES")
    texts.set_data_from_numpy(np.array([["one", "zwö"]], object), binary_data=binary)
    return [*tensors, texts]


def shown(output: InferOutput) -> object:
    array = output.as_numpy()
    if output.datatype == "BYTES":
        return [one.decode() if isinstance(one, bytes) else one for one in array.reshape(-1).tolist()]
    return [str(array.dtype), array.astype(float).tolist()]


async def main(url: str, key: str) -> dict[str, object]:
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=60))
    headers = {"Authorization": f"Bearer {key}"}
    found: dict[str, object] = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model": await client.is_model_ready(url, "mirror", headers=headers),
        "absent": await client.is_model_ready(url, "nobody", headers=headers),
        "broken": await client.is_model_ready(url, "broken", headers=headers),
    }
    for binary in (True, False):
        request = InferRequest("mirror", inputs(binary), request_id="mine")
        answer = await client.infer(url, request, model_name="mirror", headers=dict(headers))
        found[f"binary {binary}"] = {one.name: shown(one) for one in answer.outputs}
        found["id"] = answer.id
    for name, given in (("key", {}), ("error", headers)):
        request = InferRequest("nobody", inputs(True))
        try:
            await client.infer(url, request, model_name="nobody", headers=dict(given))
        except httpx.HTTPStatusError as error:
            found[name] = str(error)
    await client.close()
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
