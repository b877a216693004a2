"""`GET /api/config` and `GET /api/config/<node>`, to be served beside the scheduler's routes."""

from aiohttp import web

from partage.controllers.effective import effective
from partage.controllers.picture import Picture
from partage.model.errors import InvalidDocument
from partage.model.policy import Policy
from partage.serving.limits import json_response


def config_routes(picture: Picture, policy: Policy | None = None) -> list[web.RouteDef]:
    """The routes; `policy` is the one in force where no ConfigMap names one."""

    async def one(request: web.Request) -> web.Response:
        name = request.match_info["node"]
        try:
            found = effective(picture, name, policy)
        except InvalidDocument as error:
            return json_response({"message": f"node {name} cannot be read: {error}"}, 422)
        if found is None:
            return json_response({"message": f"there is no node {name}"}, 404)
        return json_response(found)

    async def all_(_request: web.Request) -> web.Response:
        configs = picture.configs
        return json_response(
            {
                "policy": str(configs.configuration.policy or policy or Policy()),
                "sources": [
                    {"configMap": s.name, "resourceVersion": s.version, "keys": s.keys}
                    for s in configs.sources
                ],
                "refused": dict(sorted(configs.refused.items())),
            }
        )

    return [web.get("/api/config", all_), web.get("/api/config/{node}", one)]
