"""Steps of a user on the web page, and the visible results."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.browser.stub_answers import street
from tests.waiting import PATIENCE

# The fingerprint of a drawing: how many pixels are not empty, and the sum of all.
DRAWING = """canvas => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let [seen, sum] = [0, 0];
  for (let i = 0; i < data.length; i += 4) {
    seen += data[i + 3] > 0;
    sum += data[i] + 3 * data[i + 1] + 7 * data[i + 2] + data[i + 3];
  }
  return [seen, sum];
}"""

# Two frames: the layout of the first has called its observers, and the second has drawn what they changed.
FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"

IS_LOADED = "image => image.complete && image.naturalWidth > 0"


def wait_until(page: Any, expression: str, seconds: float = PATIENCE) -> None:
    """Wait for an expression to hold. Playwright's own waiting would need eval, which the page's policy refuses."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never came true: {expression}"
        page.wait_for_timeout(20)


def choose(page: Any, zone: str, files: Path | list[Path]) -> None:
    """Files as the picker of a drop zone would give them."""
    page.set_input_files(f"#{zone} input[type=file] >> nth=0", files)


def ask(page: Any, photo: Path) -> None:
    choose(page, "recognize-files", photo)
    page.wait_for_selector(".hit, #recognize-alert:not([hidden])")


def ask_why(page: Any, photo: Path, rank: int = 1) -> None:
    ask(page, photo)
    page.click(f".hit:nth-child({rank}) button")
    page.wait_for_selector(".pair")
    wait_until(page, f"[...document.querySelectorAll('.pair img')].every({IS_LOADED})")


def drawing(page: Any, selector: str) -> list[int]:
    return page.eval_on_selector(selector, DRAWING)


def finished_drawing(page: Any, selector: str) -> list[int]:
    """Return the drawing once it is not empty and no frame changes it."""
    end, before = time.monotonic() + PATIENCE, [0, 0]
    while (now := drawing(page, selector)) != before or not now[0]:
        assert time.monotonic() < end, f"never finished: {selector}"
        before = now
        page.evaluate(FRAMES)
    return now


def wait_for_text(page: Any, selector: str, text: str) -> None:
    page.locator(selector, has_text=text).first.wait_for()


def dropped(page: Any, selector: str, name: str) -> None:
    """Drop a photo on an element."""
    content = list(street(78))
    transfer = page.evaluate_handle(
        """([name, bytes]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], name, { type: 'image/jpeg' }));
          return transfer;
        }""",
        [name, content],
    )
    page.dispatch_event(selector, "drop", {"dataTransfer": transfer})
