"""Rooms of the package import from lower floors only, and docs/images/floors.svg shows them."""

import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
# Each of these rooms can be read, tested and simulated without these libraries.
APART = {
    "config": {"torch", "parsl"},
    "placement": {"torch", "parsl", "optuna"},
    "search": {"torch", "parsl"},
    "data": {"parsl", "optuna"},
    "models": {"parsl", "optuna"},
    "training": {"parsl", "optuna"},
}


@pytest.fixture(scope="module")
def floors():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        import floors

        yield floors
    sys.modules.pop("floors")


def test_every_room_is_on_one_floor(floors):
    placed = [name for floor in floors.FLOORS for name in floor]
    assert len(placed) == len(set(placed))
    assert floors.rooms() == set(placed)


def test_rooms_import_from_lower_floors_only(floors):
    upward = []
    for number, floor in enumerate(floors.FLOORS):
        lower = {name for below in floors.FLOORS[number + 1 :] for name in below}
        for name in floors.rooms() & set(floor):
            upward += [f"{name} imports {other}" for other in floors.Room(name).rooms - lower]
    assert upward == []


@pytest.mark.parametrize("name", sorted(APART))
def test_a_room_does_without_some_libraries(name, floors):
    packages = {imported.partition(".")[0] for imported in floors.Room(name).imports}
    assert not packages & APART[name]


def test_the_picture_is_of_this_code(floors):
    assert floors.PICTURE.read_text(encoding="utf-8") == floors.render(), "run `make docs`"
