"""A real browser, and servers of little models for it to look at."""

import os
import shutil
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
from playwright import sync_api as playwright

from memformer_torch.runs import new_run
from memformer_torch.train import TrainConfig
from tests.serving import explore
from tests.test_talk import TEXT

playwright.expect.set_options(timeout=30_000)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
MODEL = {"name": "memformer", "d_model": 32, "num_heads": 2, "d_ff": 32, "num_encoder_layers": 1, "num_decoder_layers": 1}
MODEL |= {"segment_length": 16, "num_slots": 24}
TRAIN = TrainConfig(updates=30, batch_size=1, horizon=2, evaluate_tokens=200, log_every=10, warm_up=5)
PICTURES = os.environ.get("MEMFORMER_SCREENSHOTS")
"""A folder: where given, the page is photographed."""


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.fail("there is no chromium: apt-get install chromium, or set $CHROMIUM to one")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A model of text and one of images."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "data").mkdir()
    for split in ("train", "valid", "test"):
        (folder / "data" / f"{split}.txt").write_text(TEXT * 9, encoding="utf-8")
    text = {"name": "text", "path": str(folder / "data"), "cache": str(folder / "cache")}
    for name, data in {"text": text, "digits": {"name": "digits"}, "ids": {"name": "copy"}}.items():
        new_run(folder / name, MODEL, data, TRAIN, "cpu").fit()
    lstm = {"name": "lstm", "d_model": 16, "hidden_size": 16, "num_layers": 1, "segment_length": 16}
    new_run(folder / "lstm", lstm, text, TRAIN, "cpu").fit()
    return folder


@pytest.fixture(scope="session")
def serve(runs, tmp_path_factory):
    """A client of a server of a run; tests share those without options of their own, since to start one takes seconds."""
    with ExitStack() as servers:

        @cache
        def serve(run, *options):
            folder, data = Path(run) if "/" in str(run) else runs / run, tmp_path_factory.mktemp("data") / "sessions"
            return servers.enter_context(explore(folder, "--data", str(data), "--dtype", "float64", *options))[1]

        yield serve


@pytest.fixture
def visit(browser, serve):
    """A page on a run, in a window of its own, whose console must stay empty."""

    @contextmanager
    def visit(run, *options, allowed=(), **context):
        said, client = [], serve(run, *options)
        window = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | context))
        try:
            page = window.new_page()
            page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: said.append(f"error: {error}"))
            asked = []
            page.on("request", lambda request: asked.append(request.url))
            page.goto(f"http://127.0.0.1:{client.port}/")
            page.set_default_timeout(30_000)
            yield page
            home = f"http://127.0.0.1:{client.port}/"
            assert [url for url in asked if not url.startswith((home, "data:", f"blob:{home}"))] == []
            assert [line for line in said if not any(word in line for word in allowed)] == []
        finally:
            window.close()

    return visit
