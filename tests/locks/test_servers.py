"""The lock manager does the same on every server that is promised, whatever way leads there."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.locks.scenario import asynchronous, make_manager, play
from tests.support.services import WAYS, AnyClient, Services, Way

FORMS: dict[str, dict[str, Any]] = {
    "the client's own": {},
    "RESP2": {"protocol": 2},
    "RESP3": {"protocol": 3},
    "RESP2, decoded": {"protocol": 2, "decode_responses": True},
    "RESP3, decoded": {"protocol": 3, "decode_responses": True},
}


@pytest.fixture
def prefix(services: Services) -> str:
    return services.prefix


@pytest.fixture
def way(services: Services, request: pytest.FixtureRequest) -> Way:
    return WAYS[request.param](services)


@pytest.fixture
def control(way: Way) -> Iterator[AnyClient]:
    with way.control() as client:
        client.flushall()
        yield client


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", WAYS, indirect=True)
class TestEveryWay:
    def test_synchronous(self, way: Way, control: AnyClient, prefix: str, form: str) -> None:
        with way.client(**FORMS[form]) as client:
            play(make_manager(client, prefix), control)

    def test_asynchronous(self, way: Way, control: AnyClient, prefix: str, form: str) -> None:
        with asynchronous(way, prefix, **FORMS[form]) as locks:
            play(locks, control)
