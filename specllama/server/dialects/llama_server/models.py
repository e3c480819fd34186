"""llama-server's routes that load and unload models, and those that download known ones."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from starlette.responses import JSONResponse, Response

from specllama.server.dialects.shared.base import ApiRequest, ApiRoute
from specllama.server.dialects.shared.fields import RequestBody


class ModelRequest(RequestBody):
    """The body of these routes."""

    model: Annotated[str, Field(max_length=512)]


async def load(api: ApiRequest) -> Response:
    """Answers when the model is loaded."""
    body = await api.body(ModelRequest)
    api.check_model(body.model, exact=True)
    await api.load_model()
    return JSONResponse({"success": True})


async def unload(api: ApiRequest) -> Response:
    """Running requests finish first."""
    body = await api.body(ModelRequest)
    api.check_model(body.model, exact=True)
    api.unload_model()
    return JSONResponse({"success": True})


async def pull(api: ApiRequest) -> Response:
    """Answers at once; the list of models shows the progress."""
    body = await api.body(ModelRequest)
    api.pull_model(body.model, stop=False)
    return JSONResponse({"success": True})


async def stop_pull(api: ApiRequest) -> Response:
    """Bytes received are kept, and a later download resumes."""
    body = await api.body(ModelRequest)
    api.pull_model(body.model, stop=True)
    return JSONResponse({"success": True})


ROUTES = (
    ApiRoute("POST", "/models/load", load, "Load a model", ModelRequest),
    ApiRoute("POST", "/models/unload", unload, "Unload a model", ModelRequest),
    ApiRoute("POST", "/models/pull", pull, "Download a known model", ModelRequest),
    ApiRoute("POST", "/models/pull/stop", stop_pull, "End that", ModelRequest),
)
