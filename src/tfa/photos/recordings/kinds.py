"""Which files are recordings, by their names and by their first bytes."""

from __future__ import annotations

from pathlib import Path

BAGS = (".bag", ".db3", ".mcap")
VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".webm")
BAG_BYTES = {b"#ROSBAG V": ".bag", b"SQLite format 3\0": ".db3", b"\x89MCAP0\r\n": ".mcap"}
NO_TOPIC = "none"  # a position topic that is none
METADATA = "metadata.yaml"  # of a ROS 2 bag, which is a folder
_SIGN = b"rosbag2_bagfile_information"
ALLOWED_RECORDINGS = (
    "a ROS 1 bag (.bag), a ROS 2 bag (.db3, .mcap or its folder), or a video (.mp4, .mkv, .avi, .mov, .webm)"
)


def is_recording(path: Path) -> bool:
    """Is it a bag or a video, by its name or, whatever it is called, by its first bytes?"""
    if path.suffix.lower() in (*BAGS, *VIDEOS):
        return not path.is_dir() or is_bag_folder(path)
    return is_bag_folder(path) or detect_bag(path) is not None


def is_bag_folder(path: Path) -> bool:
    """Is it a ROS 2 bag, and not a folder of photos with a file of that name in it?"""
    try:
        with open(path / METADATA, "rb") as file:
            return _SIGN in file.read(4096)
    except OSError:
        return False


def detect_bag(path: Path) -> str | None:
    """The suffix that a bag of this content has; None if it is no bag."""
    try:
        with open(path, "rb") as file:
            start = file.read(16)
    except OSError:
        return None
    return next((suffix for sign, suffix in BAG_BYTES.items() if start.startswith(sign)), None)
