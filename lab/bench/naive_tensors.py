"""
The peer of ``lab.bench.tensors``: FastAPI with the model in its own process, tensors as JSON by orjson. Uvicorn runs it
with one worker.

It speaks the JSON form of the Open Inference Protocol and does as little as such a server can: no queue, no keys, no
checks. It parses the body itself, because FastAPI's ``dict`` parameter would parse it by the standard library and
validate it.
"""

import numpy as np
import orjson
from fastapi import FastAPI, Request, Response

from lab.bench.means import ChannelMeans


def gateway() -> FastAPI:
    app, handler = FastAPI(), ChannelMeans()
    handler.load("cpu")

    @app.post("/infer")
    async def infer(request: Request) -> Response:
        given = orjson.loads(await request.body())["inputs"][0]
        means = handler.predict({"image": np.array(given["data"], np.float32).reshape(given["shape"])})
        outputs = [
            {"name": name, "datatype": "FP32", "shape": array.shape, "data": array.reshape(-1)}
            for name, array in means.items()
        ]
        return Response(
            orjson.dumps({"model_name": "means", "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY),
            200,
            None,
            "application/json",
        )

    return app
