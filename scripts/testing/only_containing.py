"""pytest plugin: keeps the tests whose id contains a text, whatever characters are in it."""


def pytest_addoption(parser):
    parser.addoption("--only-containing", default="", help="only tests whose id contains this text")


def pytest_collection_modifyitems(config, items):
    text = config.getoption("--only-containing")
    kept = [item for item in items if text in item.nodeid]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if text not in item.nodeid])
        items[:] = kept
