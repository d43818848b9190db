"""A bag or a video, opened by what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tfa.errors import BadRecording, BadSpec
from tfa.photos.recordings.kinds import ALLOWED_RECORDINGS, BAGS, NO_TOPIC, VIDEOS, detect_bag, is_bag_folder
from tfa.photos.recordings.recording import Recording


@contextmanager
def open_recording(path: Path, topic: str | None = None, position_topic: str | None = None) -> Iterator[Recording]:
    """A recording whose frames can be read; of a bag, topics are named where there are several, or are "none"."""
    from tfa.photos.recordings.ros_bags import open_bag
    from tfa.photos.recordings.videos import open_video

    if not path.exists():
        raise BadRecording(f"{path} does not exist; give {ALLOWED_RECORDINGS}", path)
    is_bag = is_bag_folder(path) or (not path.is_dir() and (path.suffix in BAGS or detect_bag(path) is not None))
    if is_bag:
        with open_bag(path, topic, position_topic) as bag:
            yield bag
    elif path.suffix.lower() in VIDEOS and not path.is_dir():
        if topic is not None or position_topic not in (None, NO_TOPIC):
            raise BadSpec(f"{path} is a video, which has no topics; leave out --topic and --position-topic")
        with open_video(path) as video:
            yield video
    else:
        raise BadRecording(f"{path} is no recording; give {ALLOWED_RECORDINGS}", path)
