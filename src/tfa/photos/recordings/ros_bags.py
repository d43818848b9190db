"""ROS 1 bags, and ROS 2 bags in db3 and MCAP, by rosbags (extra `bags`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tfa.errors import BadImage, BadRecording, MissingExtra, from_os_error
from tfa.photos.positions import format_count
from tfa.photos.recordings.image_messages import IMAGE_MESSAGES, decode_picture
from tfa.photos.recordings.kinds import NO_TOPIC, detect_bag
from tfa.photos.recordings.recording import FramePicture, RecordedFrame
from tfa.photos.recordings.tracks import POSITION_MESSAGES, Clocked, MessageTrack, read_track

_APART = 60_000_000_000  # nanoseconds by which two clocks may be apart and still be one
_LISTED = 40  # topics that an error lists
_RECOVER = {
    ".bag": "index it with: rosbag reindex {name}",
    ".mcap": "recover what is whole with: mcap recover {name} -o recovered.mcap",
    ".db3": "give the folder it lies in, or copy the bag again",
}


@dataclass(frozen=True)
class BagTopic:
    """A topic of a bag."""

    name: str
    kind: str  # of its messages, such as sensor_msgs/msg/Image
    count: int
    connections: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.name} ({self.kind}, {self.count:,})"


@contextmanager
def open_bag(path: Path, topic: str | None, position_topic: str | None) -> Iterator[BagRecording]:
    """A bag whose topics are chosen."""
    reader = _reader(path)
    with _explain_errors(path):
        reader.open()
    try:
        with _explain_errors(path):
            topics = _topics(reader)
        images = choose_topic(topics, topic, IMAGE_MESSAGES, path, "--topic", "images")
        assert images is not None, "a bag without one is refused"
        positions = choose_topic(
            topics, position_topic, tuple(POSITION_MESSAGES), path, "--position-topic", "positions"
        )
        yield BagRecording(path, reader, images, positions)
    finally:
        reader.close()


def _reader(path: Path) -> Any:
    try:
        from rosbags.rosbag1 import Reader as Reader1
        from rosbags.rosbag2 import Reader as Reader2
    except ImportError:
        raise MissingExtra("bags need rosbags; install with: pip install 'tfa-vpr[bags]'") from None
    known = path.suffix if path.is_dir() else detect_bag(path)
    if not path.is_dir() and known != path.suffix:
        if known is None:
            size = path.stat().st_size
            said = "is empty" if not size else f"is no {path.suffix[1:]} file: its first bytes are those of none"
            raise BadRecording(f"{path} {said}; copy or record it again", path)
        raise BadRecording(f"{path} is a {known} file by its content; rename it to {path.stem}{known}", path)
    with _explain_errors(path):
        return Reader1(path) if known == ".bag" else Reader2(path)


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Whatever a damaged bag makes the library stumble on, as one error."""
    try:
        yield
    except (BadRecording, BadImage, GeneratorExit):
        raise
    except Exception as error:
        if (known := from_os_error(error, path)) is not None:
            raise known from error
        said = " ".join(str(error).split())[:200] or type(error).__name__
        if not type(error).__module__.startswith("rosbags"):  # what it did not expect
            said = f"it is damaged ({said})"
        advice = _RECOVER.get(path.suffix, "copy it again").format(name=path.name)
        if "Profile is not" in said:
            advice = "only MCAP files of ROS 2 are read"
        raise BadRecording(f"{path} cannot be read: {said.rstrip('.')}; if it was cut short, {advice}", path) from None


def _topics(reader: Any) -> list[BagTopic]:
    by_name: dict[tuple[str, str], list[Any]] = {}
    for one in reader.connections:
        encoding = getattr(one.ext, "serialization_format", "cdr")
        kind = one.msgtype if encoding == "cdr" else f"{one.msgtype} in {encoding}"
        by_name.setdefault((one.topic, kind), []).append(one)
    return [
        BagTopic(name, kind, sum(one.msgcount for one in several), tuple(several))
        for (name, kind), several in sorted(by_name.items())
    ]


def choose_topic(
    topics: Sequence[BagTopic], requested: str | None, kinds: Sequence[str], path: Path, option: str, what: str
) -> BagTopic | None:
    """The topic that is named, or the only one of these kinds; None if there are no positions."""
    able = [one for one in topics if one.kind in kinds and one.count]
    if requested == NO_TOPIC and option != "--topic":
        return None
    if requested is None:
        if len(able) == 1:
            return able[0]
        if able:
            or_none = "" if option == "--topic" else f", or {option} {NO_TOPIC}"
            raise BadRecording(
                f"{path} has {len(able)} topics with {what}; choose one with {option}{or_none}:", path, more=_list(able)
            )
        if option == "--topic":
            has = f"has {format_count(len(topics), 'topic')}, none with {what} ({', '.join(kinds)})"
            raise BadRecording(f"{path} {has}{':' if topics else ''}", path, more=_list(topics))
        return None
    named = [one for one in topics if one.name == requested]
    if not named:
        raise BadRecording(f"{path} has no topic {requested}; its topics are:", path, more=_list(topics))
    right = [one for one in named if one.kind in kinds]
    if not right:
        others = f"; topics with {what} are:" if able else ""
        raise BadRecording(
            f"{requested} of {path} is of {named[0].kind}, must be of {' or '.join(kinds)}{others}",
            path,
            more=_list(able),
        )
    if not right[0].count:
        raise BadRecording(f"{requested} of {path} has no messages; its topics are:", path, more=_list(topics))
    return right[0]


def _list(topics: Sequence[BagTopic]) -> list[str]:
    more = [f"  … and {len(topics) - _LISTED} more"] if len(topics) > _LISTED else []
    return [f"  {one}" for one in topics[:_LISTED]] + more


class BagRecording:
    """Frames of one topic of an open bag, placed by those of another."""

    def __init__(self, path: Path, reader: Any, images: BagTopic, positions: BagTopic | None) -> None:
        from rosbags.typesys import Stores, get_typestore

        self.path, self.total, self.notes = path, images.count, list[str]()
        self.images, self.positions, self._reader = images, positions, reader
        # Of the kinds that are read every release has the same definition, so that a bag need not bring it.
        self._is_ros1 = type(reader).__module__.startswith("rosbags.rosbag1")
        store = get_typestore(Stores.ROS1_NOETIC if self._is_ros1 else Stores.ROS2_HUMBLE)
        self._parse = store.deserialize_ros1 if self._is_ros1 else store.deserialize_cdr
        self._stamped = True  # by their headers, or else by when they were recorded
        self._track = self._read_track()

    @property
    def placed(self) -> bool:
        return self._track is not None

    def facts(self) -> dict[str, Any]:
        return {"topic": self.images.name, "position_topic": None if self.positions is None else self.positions.name}

    def frames(self) -> Iterator[RecordedFrame]:
        with _explain_errors(self.path):
            for one in self._messages(self.images):
                time_ns = (one.stamp if self._stamped else 0) or one.recorded
                position = None if self._track is None else self._track.at(time_ns)
                yield RecordedFrame(time_ns, partial(self._picture, one.message, time_ns), position)

    def _picture(self, message: Any, time_ns: int) -> FramePicture:
        try:
            return decode_picture(message, self.images.kind)
        except BadImage as error:
            when = f"{time_ns // 10**9}.{time_ns % 10**9:09d}"
            raise BadImage(f"{self.path}, {self.images.name} at {when}: {error}", self.path) from None

    def _messages(self, topic: BagTopic) -> Iterator[Clocked]:
        for _, recorded, raw in self._reader.messages(topic.connections):
            message: Any = self._parse(raw, topic.kind)
            stamp = message.header.stamp
            yield Clocked(recorded, int(stamp.sec) * 10**9 + int(stamp.nanosec), message)

    def _read_track(self) -> MessageTrack | None:
        """Positions are few and small beside images: all are read before the first frame."""
        if self.positions is None:
            return None
        with _explain_errors(self.path):
            first = next(self._messages(self.images), None)
            also = next(self._messages(self.positions), None)
            if first is not None and also is not None:
                self._stamped = self._one_clock(first, also)
            track, notes = read_track(
                self._messages(self.positions), self.positions.kind, self.positions.name, stamped=self._stamped
            )
        self.notes += notes
        return track

    def _one_clock(self, image: Clocked, position: Clocked) -> bool:
        """Are the stamps of both topics of one clock? A bag that was replayed keeps old stamps, but of both."""
        assert self.positions is not None
        if not image.stamp or not position.stamp:
            return False
        apart = abs((image.stamp - image.recorded) - (position.stamp - position.recorded))
        if apart <= _APART:
            return True
        self.notes.append(
            f"the clocks of {self.images.name} and {self.positions.name} are {apart / 1e9:,.0f} s apart: the times of "
            "recording are taken"
        )
        return False
