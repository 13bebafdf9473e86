"""Python's options are those of the one list in src/options/options.cpp."""

import dataclasses

import pytest
from ckptengine import Engine, Error, Options, Status
from conftest import build_file_of
from python_options import FILE, options_of, render


def test_python_has_every_option_with_its_type_default_and_help():
    options = options_of(build_file_of("ckptctl"))
    assert FILE.read_text() == render(options), f"run scripts/python_options.py CKPTCTL, which writes {FILE}"
    assert [field.name for field in dataclasses.fields(Options)] == [option["name"] for option in options]


def test_engine_takes_an_options_object_and_arguments_override_it(cluster):
    given = cluster.options(copies=1)
    options = Options(**given | {"copies": 16})
    with Engine(options, library=build_file_of("libckptengine.so"), copies=1) as engine:
        engine.register("state", bytearray(8))
        assert not engine.restore().found
        assert engine.snapshot(0)
        assert engine.before_update()
        assert engine.health().copies_wanted in (0, 1)  # 0: the agent has not told yet


def test_invalid_option_is_reported_when_the_engine_is_created(cluster):
    with pytest.raises(TypeError, match="bananas"):
        Options(bananas=3)
    with pytest.raises(Error, match="copies") as caught:
        Engine(Options(**cluster.options() | {"copies": "many"}), library=build_file_of("libckptengine.so"))
    assert caught.value.status is Status.INVALID
