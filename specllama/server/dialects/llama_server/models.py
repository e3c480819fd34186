"""llama-server's routes that load and unload models, and those that download known ones."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.responses import JSONResponse, Response

from specllama.server.dialects.shared.base import ApiRequest, ApiRoute
from specllama.server.dialects.shared.fields import RequestBody


class ModelRequest(RequestBody):
    """The body of all these routes."""

    model: Annotated[str, Field(max_length=512)]


async def load(api: ApiRequest) -> Response:
    """The answer comes when the model is in memory."""
    body = await api.body(ModelRequest)
    api.check_model(body.model, exact=True)
    await api.load_model()
    return JSONResponse({"success": True})


async def unload(api: ApiRequest) -> Response:
    """Requests that run end first."""
    body = await api.body(ModelRequest)
    api.check_model(body.model, exact=True)
    api.unload_model()
    return JSONResponse({"success": True})


async def pull(api: ApiRequest) -> Response:
    """The answer comes at once; the progress is in the list of models."""
    body = await api.body(ModelRequest)
    api.pull_model(body.model, stop=False)
    return JSONResponse({"success": True})


async def stop_pull(api: ApiRequest) -> Response:
    """What has arrived is kept, and a later download resumes it."""
    body = await api.body(ModelRequest)
    api.pull_model(body.model, stop=True)
    return JSONResponse({"success": True})


ROUTES = (
    ApiRoute("POST", "/models/load", load, "Load a model", ModelRequest),
    ApiRoute("POST", "/models/unload", unload, "Unload a model", ModelRequest),
    ApiRoute("POST", "/models/pull", pull, "Download a known model", ModelRequest),
    ApiRoute("POST", "/models/pull/stop", stop_pull, "End that", ModelRequest),
)
