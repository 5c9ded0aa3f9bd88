"""The page in a real browser: read, watch, write, save, load, and go on as if never interrupted."""

import os
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PICTURES

TEXT = "the cat sees the dog , and the dog sees a cat that is not seen by dogs . "


def ready(page):
    """Nothing is going on any more."""
    expect(page.locator("main")).to_be_visible()
    expect(page.locator("body:not([aria-busy])")).to_be_attached()


def read(page, text):
    page.fill("#given", text)
    page.click("#read")
    expect(page.locator("#given")).to_have_value("")
    ready(page)


def write(page, number, seed):
    page.fill("#max_tokens", str(number))
    page.fill("#seed", str(seed))
    before = page.locator("#transcript .wrote").count()
    page.click("#write")
    expect(page.locator("#status")).to_contain_text(f"Seed {seed}")
    ready(page)
    assert page.locator("#transcript .wrote").count() in (before, before + 1)
    return page.locator("#transcript .wrote").last.text_content()


def heats(page):
    """How each slot is coloured."""
    return page.locator("#map button").evaluate_all("cells => cells.map(cell => cell.style.getPropertyValue('--heat'))")


def test_read_watch_write_save_reload_load_and_go_on(visit):
    with visit("text") as page:
        ready(page)
        cells = page.locator("#map button")
        expect(cells).to_have_count(24)
        assert set(heats(page)) == {"0"}
        read(page, TEXT)
        expect(page.locator("#transcript .read")).to_have_text(TEXT)
        first = heats(page)
        assert any(float(heat) > 0.1 for heat in first)
        read(page, TEXT[::-1])
        assert heats(page) != first
        expect(page.locator("#status")).to_contain_text(f"{2 * len(TEXT)} tokens")

        page.fill("#name", "book")
        page.click("#save")
        expect(page.locator("#sessions")).to_contain_text(f"book, {2 * len(TEXT)} tokens")
        written = write(page, 60, 7)
        assert len(written) > 20

        page.reload()
        ready(page)
        expect(page.locator("#status")).to_contain_text(f"going on after {2 * len(TEXT) + 60} tokens")
        page.click("text=Load")
        expect(page.locator("#status")).to_contain_text(f"Loaded book, {2 * len(TEXT)} tokens")
        assert write(page, 60, 7) == written

        page.once("dialog", lambda dialog: dialog.accept())
        page.click("#save")
        expect(page.locator("#sessions")).to_contain_text(f"book, {2 * len(TEXT) + 60} tokens")
        page.fill("#name", "other")
        page.click("[aria-label='Fork book']")
        expect(page.locator("#sessions")).to_contain_text("other")
        page.once("dialog", lambda dialog: dialog.accept())
        page.click("[aria-label='Delete book']")
        expect(page.locator("#status")).to_contain_text("Deleted book")
        page.click("[aria-label='Load other']")
        expect(page.locator("#status")).to_contain_text(f"Loaded other, {2 * len(TEXT) + 60} tokens")


def test_time_is_stepped_through_by_keys_and_slots_by_theirs(visit):
    with visit("text") as page:
        ready(page)
        read(page, TEXT)
        last = len(TEXT) // 16 - 1
        told = page.locator("#time-told")
        expect(told).to_have_text(f"segment {last} of 0 to {last}")
        now = heats(page)
        page.focus("#time")
        page.keyboard.press("ArrowLeft")
        expect(told).to_have_text(f"segment {last - 1} of 0 to {last}")
        assert heats(page) != now
        page.keyboard.press("Home")
        expect(page.locator("#segment")).to_have_text(TEXT[:16])
        page.click("#forth")
        expect(page.locator("#segment")).to_have_text(TEXT[16:32])
        page.focus("#map button:nth-child(1)")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#life-title")).to_have_text("Slot 1")
        expect(page.locator("#chart rect")).to_have_count(last + 1)
        page.keyboard.press("PageUp")
        expect(told).to_have_text(f"segment 0 of 0 to {last}")
        assert page.locator("#map button[aria-pressed=true]").count() == 1
        assert re.match(r"Slot 1, turned by \d+°, (keeps|mixes|takes)", page.locator(":focus").get_attribute("aria-label"))
        expect(page.locator("#took li").first).to_contain_text(f"segment {last}: ")
        page.locator("#chart rect").nth(2).click(force=True)
        expect(told).to_have_text(f"segment 2 of 0 to {last}")
        page.locator("body").click(position={"x": 2, "y": 2})
        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("ArrowRight")
        expect(told).to_have_text(f"segment 3 of 0 to {last}")


def test_a_file_is_read_in_pieces_and_can_be_stopped(visit, tmp_path):
    (tmp_path / "book.txt").write_text("ein süßer Text — and more\n" * 400, encoding="utf-8")
    (tmp_path / "bad.txt").write_bytes(b"ab\xff")
    with visit("text", allowed=["not UTF-8"]) as page:
        ready(page)
        page.set_input_files("#file", tmp_path / "book.txt")
        expect(page.locator("#progress-row")).to_be_visible()
        page.click("#stop")
        expect(page.locator("#status")).to_contain_text("Stopped.")
        ready(page)
        told = int(re.search(r"(\d+) tokens", page.text_content("#status"))[1])
        assert 0 < told < 400 * len("ein süßer Text — and more\n".encode())
        page.set_input_files("#file", tmp_path / "bad.txt")
        expect(page.locator("#problem")).to_contain_text("bad.txt is not UTF-8")
        page.click("#new")
        expect(page.locator("#status")).to_have_text("A new document.")
        (tmp_path / "short.txt").write_text("süß\n", encoding="utf-8")
        page.set_input_files("#file", tmp_path / "short.txt")
        expect(page.locator("#status")).to_contain_text("6 tokens read")
        expect(page.locator("#transcript .read")).to_have_text("süß")


def test_a_digit_is_completed_pixel_by_pixel(visit):
    with visit("digits") as page:
        ready(page)
        expect(page.locator("#status")).to_contain_text("Test image 0 of 180")
        before = page.locator("#canvas").screenshot()
        page.fill("#seed", "3")
        page.click("#complete")
        expect(page.locator("#status")).to_contain_text("64 tokens read so far")
        ready(page)
        completed = page.locator("#canvas").screenshot()
        assert completed != before
        assert any(float(heat) > 0 for heat in heats(page))
        page.click("#clear")
        page.focus("#canvas")
        for key in ("ArrowRight", "ArrowDown", " ", "ArrowDown", " "):
            page.keyboard.press(key)
        box = page.locator("#canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 10)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.4, steps=5)
        page.mouse.up()
        page.click("#complete")
        expect(page.locator("#status")).to_contain_text("Seed 3")
        ready(page)
        assert page.locator("#canvas").screenshot() != completed


def test_ids_are_read_and_written(visit):
    with visit("ids", allowed=["ids are whole numbers"]) as page:
        ready(page)
        read(page, "1 2, 3")
        expect(page.locator("#transcript .read")).to_have_text("1 2 3 ")
        write(page, 5, 1)
        page.fill("#given", "1 two")
        page.click("#read")
        expect(page.locator("#problem")).to_contain_text("ids are whole numbers")


def test_a_model_without_slots(visit):
    with visit("lstm") as page:
        ready(page)
        read(page, TEXT)
        expect(page.locator("#no-slots")).to_be_visible()
        written = write(page, 20, 1)
        assert written


def test_a_token_is_asked_for(visit):
    with visit("text", "--token", "secret", allowed=["token", "401"]) as page:
        expect(page.locator("#token-form")).to_be_visible()
        page.fill("#token", "secret")
        page.click("#token-form button")
        ready(page)
        read(page, TEXT)


def test_what_goes_wrong_is_said(visit):
    with visit("text", "--limits.max_output", "50", allowed=["at most 50", "422"]) as page:
        ready(page)
        page.fill("#max_tokens", "60")
        page.click("#write")
        expect(page.locator("#problem")).to_contain_text("max_tokens is 60, but may be at most 50")
        write(page, 10, 1)
        expect(page.locator("#problem")).to_be_hidden()


def test_the_api_is_described(visit):
    with visit("text") as page:
        ready(page)
        page.click("text=API")
        expect(page.locator("#operations")).to_contain_text("POST /v1/completions")
        expect(page.locator("#operations")).to_contain_text("POST /sessions/{name}/feed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(visit, scheme):
    with visit("text", color_scheme=scheme) as page:
        ready(page)
        look = "getComputedStyle(document.body).backgroundColor"
        colours = [page.evaluate(look)]
        page.click("#theme")
        colours.append(page.evaluate(look))
        page.reload()
        ready(page)
        assert page.evaluate(look) == colours[1]
        both = ["rgb(246, 247, 249)", "rgb(16, 21, 28)"]
        assert colours == (both if scheme == "light" else both[::-1])


def test_a_phone_shows_all_of_it(visit):
    with visit("text", viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True) as page:
        ready(page)
        read(page, TEXT)
        page.tap("#map button:nth-child(3)")
        expect(page.locator("#life-title")).to_have_text("Slot 2")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_every_control_has_a_name(visit):
    name = "c => [c.getAttribute('aria-label'), c.textContent, c.labels?.[0]?.textContent].find(name => name && name.trim())"
    with visit("text") as page:
        ready(page)
        read(page, TEXT)
        for role in ("button", "textbox", "spinbutton", "slider"):
            for control in page.get_by_role(role).all():
                assert control.evaluate(name)


@pytest.mark.skipif(not PICTURES, reason="for who asks, by $MEMFORMER_SCREENSHOTS and $MEMFORMER_SCREENSHOT_RUN")
@pytest.mark.parametrize("name", ["light", "dark", "phone"])
def test_photographs(visit, name):
    """Of a run, or of the tests' own, and of a file that it reads, or of the tests' own text."""
    run, file = os.environ.get("MEMFORMER_SCREENSHOT_RUN", "text"), os.environ.get("MEMFORMER_SCREENSHOT_TEXT")
    context = {"color_scheme": "dark" if name == "dark" else "light", "viewport": {"width": 1280, "height": 1000}}
    if name == "phone":
        context |= {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
    with visit(run, **context) as page:
        page.on("dialog", lambda dialog: dialog.accept())
        ready(page)
        page.fill("#seed", "1")
        if page.locator("#image-panel").is_visible():
            page.click("#complete")
            expect(page.locator("#status")).to_contain_text("Seed")
            ready(page)
        else:
            read(page, Path(file).read_text(encoding="utf-8") if file else TEXT * 5)
            write(page, 100, 1)
        page.click("#map button:nth-child(4)")
        expect(page.locator("#chart rect").first).to_be_attached()
        page.fill("#name", "book")
        page.click("#save")
        expect(page.locator("#sessions")).to_contain_text("book")
        page.mouse.move(0, 0)
        if name == "phone":
            page.locator("#memory").evaluate("part => part.scrollIntoView()")
        page.screenshot(path=Path(PICTURES) / f"explore-{name}.png")
