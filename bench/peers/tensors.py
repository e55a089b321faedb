"""
The peer of ``bench.tensors``: FastAPI with the model in its own process, tensors as JSON by orjson. Run by uvicorn with
one worker.

It takes and gives the Open Inference Protocol's JSON form, reads the body itself (FastAPI's own ``dict`` parameter
would parse it by the standard library and walk it again), and has no queue, no keys and no checks: as little as such a
server can do.
"""

import numpy as np
import orjson
from fastapi import FastAPI, Request, Response

from bench.means import ChannelMeans


def gateway() -> FastAPI:
    app, handler = FastAPI(), ChannelMeans()
    handler.load("cpu")

    @app.post("/infer")
    async def infer(request: Request) -> Response:
        given = orjson.loads(await request.body())["inputs"][0]
        found = handler.predict({"image": np.array(given["data"], np.float32).reshape(given["shape"])})
        outputs = [
            {"name": name, "datatype": "FP32", "shape": array.shape, "data": array.reshape(-1)}
            for name, array in found.items()
        ]
        return Response(
            orjson.dumps({"model_name": "means", "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY),
            200,
            None,
            "application/json",
        )

    return app
