import msgspec

from headrace.admin.openapi import document
from headrace.hub.verbs import Nothing, Verbs


class Item(msgspec.Struct, frozen=True):
    name: str


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stream: str


async def items(request: Ask) -> list[Item]:
    return []


async def anything(request: Nothing):  # type: ignore[no-untyped-def]
    return None


def made() -> dict:  # type: ignore[type-arg]
    verbs = Verbs()
    verbs.register("item.list", Ask, items, right="read", summary="List items")
    verbs.register("odd.any", Nothing, anything, right="admin")
    return document(verbs)


def test_every_verb_is_a_path_with_its_structs() -> None:
    operation = made()["paths"]["/api/v1/item.list"]["post"]
    assert operation["operationId"] == "item.list"
    assert operation["summary"] == "List items"
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Ask"}
    answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer == {"type": "array", "items": {"$ref": "#/components/schemas/Item"}}
    assert made()["components"]["schemas"]["Ask"]["required"] == ["stream"]


def test_an_unknown_answer_is_anything() -> None:
    operation = made()["paths"]["/api/v1/odd.any"]["post"]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == {}


def test_every_reference_leads_somewhere() -> None:
    whole = made()
    text = msgspec.json.encode(whole).decode()
    references = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert references == set(whole["components"]["schemas"])
