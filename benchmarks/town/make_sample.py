"""Render the photos that `tfa demo` ships: `python benchmarks/town/make_sample.py`."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from tfa.core.files import write_text
from town.traverses import render_town

_SAMPLE = Path(__file__).parents[2] / "src" / "tfa" / "demo" / "town"
_SIZE = (400, 300)  # pixels; encoders use fewer
_QUALITY = 64  # 135 photos in 2 MB


def make_sample(out: Path) -> None:
    """Replace the sample town in `out`: photos, positions of both drives, and positives."""
    with TemporaryDirectory() as folder:
        town = render_town(Path(folder), progress=True)
        shutil.rmtree(out, ignore_errors=True)
        for drive in (town.references, town.queries):
            (out / drive.name).mkdir(parents=True)
            for photo in sorted(drive.glob("*.jpg")):
                with Image.open(photo) as image:
                    smaller = image.resize(_SIZE, Image.Resampling.LANCZOS)
                smaller.save(out / drive.name / photo.name, quality=_QUALITY, optimize=True, progressive=True)
        shutil.copy(town.positions_csv, out)
        shutil.copy(town.positives_json, out)
        places = zip(town.query_files, town.query_positions, strict=True)
        lines = ["file,x,y", *(f"{file},{x:.3f},{y:.3f}" for file, (x, y) in places)]
        write_text(out / "query_positions.csv", "\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=make_sample.__doc__)
    parser.add_argument("--out", type=Path, default=_SAMPLE, help="folder that is replaced [default: %(default)s]")
    make_sample(parser.parse_args().out)
