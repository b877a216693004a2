"""A port that believes this machine answers no web page of another origin that a browser here shows."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from partage.apiserver import ApiServer, serve
from partage.serving.limits import Limits, guard
from partage.serving.local import stranger
from partage.serving.site import Site

STRANGERS = {
    "another name": {"Host": "evil.example:8001"},
    "a name that ends alike": {"Host": "localhost.evil.example"},
    "an address of the network": {"Host": "10.0.0.1:8001"},
    "another page": {"Host": "127.0.0.1:8001", "Origin": "http://evil.example"},
    "a page of another port": {"Host": "127.0.0.1:8001", "Origin": "http://127.0.0.1:9"},
    "a page of no origin": {"Host": "127.0.0.1:8001", "Origin": "null"},
    "a page by TLS": {"Host": "127.0.0.1:8001", "Origin": "https://127.0.0.1:8001"},
    "nonsense": {"Host": "[::1"},
    "a user at this machine": {"Host": "a@localhost"},
}
KNOWN = [
    {},
    {"Host": "127.0.0.1:8001"},
    {"Host": "localhost"},
    {"Host": "[::1]:8001"},
    {"Host": "127.0.0.1:8001", "Origin": "http://127.0.0.1:8001"},
]


@pytest.mark.parametrize("headers", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_known_by_its_headers(headers: dict[str, str]) -> None:
    """They have the name under which it reached this machine, or the page that sent it."""
    assert stranger(headers)


@pytest.mark.parametrize("headers", KNOWN, ids=str)
def test_programs_of_this_machine_are_none(headers: dict[str, str]) -> None:
    """kubectl, curl, and the port's own pages."""
    assert not stranger(headers)


def changed(headers: dict[str, str], address: str) -> dict[str, str]:
    """Headers of the table for an address."""
    return {key: value.replace("127.0.0.1:8001", address) for key, value in headers.items()}


@pytest.mark.parametrize("name", STRANGERS)
def test_the_api_of_a_trial_cluster_answers_none(name: str) -> None:
    """A POST that needs no permission of a browser's makes no pod, and nothing is read."""

    async def scene() -> None:
        server = ApiServer()
        async with serve(server) as url, aiohttp.ClientSession() as session:
            headers = changed(STRANGERS[name], url.removeprefix("http://"))
            maps = f"{url}/api/v1/namespaces/default/configmaps"
            body = b'{"metadata": {"name": "a"}}'
            for method, data in (("POST", body), ("GET", None), ("DELETE", None)):
                async with session.request(
                    method, maps, data=data, headers=headers, skip_auto_headers=["Content-Type"]
                ) as answer:
                    assert answer.status in (400, 403), await answer.text()
            assert not [*server.store.all("configmaps")]
            async with session.post(maps, data=body, skip_auto_headers=["Content-Type"]) as answer:
                assert answer.status == 201

    asyncio.run(scene())


def test_verbs_that_believe_this_machine_answer_none() -> None:
    """A port for others answers as before."""

    async def statuses(*, here: bool) -> list[int]:
        asked: list[bytes] = []

        async def bind(request: web.Request) -> web.Response:
            asked.append(await request.read())
            return web.json_response({})

        app = web.Application(middlewares=[guard()])
        app.router.add_post("/bind", bind)
        site = Site(app, Limits(), here=here)
        await site.start()
        found: list[int] = []
        try:
            async with aiohttp.ClientSession() as session:
                for headers in ({}, {"Origin": "http://evil.example"}):
                    async with session.post(
                        f"{site.url}/bind", data=b"{}", headers=headers
                    ) as answer:
                        found.append(answer.status)
        finally:
            await site.stop()
        assert len(asked) == found.count(200)
        return found

    assert asyncio.run(statuses(here=True)) == [200, 403]
    assert asyncio.run(statuses(here=False)) == [200, 200]
