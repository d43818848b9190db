"""Answers as a recording: one MCAP file of ROS 2 messages, with the definitions of all their types."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tfa.base.files import write_atomically
from tfa.errors import BadImage
from tfa.exports.answers.export_context import SECOND, ExportContext, degrees_of, spaced
from tfa.exports.answers.record import sure_place
from tfa.exports.answers.ros_messages import Messages, diagnostic_values, needs_extra
from tfa.maps import Answer
from tfa.maps.expected_recall import estimate_answer_recall
from tfa.photos.as_files import read_photo_file
from tfa.photos.images import as_rgb
from tfa.photos.photo_source import Photo
from tfa.version import __version__

IMAGE, MATCHES_TOPIC, POSE, FIX = "/tfa/image/compressed", "/tfa/matches", "/tfa/pose", "/tfa/fix"
DIAGNOSTICS = "/tfa/diagnostics"
# Type names as rosbags has them; in the file they are pkg/msg/Name too.
TOPICS = {
    IMAGE: "sensor_msgs/msg/CompressedImage",
    MATCHES_TOPIC: "tfa_msgs/msg/Matches",
    POSE: "geometry_msgs/msg/PoseWithCovarianceStamped",
    FIX: "sensor_msgs/msg/NavSatFix",
    DIAGNOSTICS: "diagnostic_msgs/msg/DiagnosticArray",
}
_STARTS = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n"}  # of files that are copied as they are
JPEG_QUALITY = 95
LAST_SECOND = 2**31 - 1_000_000  # ROS counts seconds in 31 bits; the rest is room for photos without a time


def check_installed() -> None:
    """Refuse what needs packages that are missing, before the work."""
    try:
        import mcap  # noqa: F401
        import rosbags  # noqa: F401
    except ImportError:
        raise needs_extra() from None


def write_mcap(path: Path, answers: Sequence[Answer], context: ExportContext) -> int:
    """Every answer in its order; how many they are. One photo at a time is held in memory."""
    assert context.times is not None
    check_installed()
    from mcap.writer import Writer

    messages = Messages()

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as file:
            writer = Writer(file)
            writer.start(profile="ros2", library=f"tfa {__version__}")
            channels = {}
            for topic, kind in TOPICS.items():
                schema = writer.register_schema(kind, "ros2msg", messages.definition(kind).encode())
                channels[topic] = writer.register_channel(topic, "cdr", schema, {"offered_qos_profiles": ""})
            for sequence, (time, topic, message) in enumerate(_messages(messages, answers, context)):
                writer.add_message(channels[topic], time, messages.cdr(message), time, sequence)
            writer.finish()

    write_atomically(Path(path), write)
    return len(answers)


def _messages(messages: Messages, answers: Sequence[Answer], context: ExportContext) -> Iterator[tuple[int, str, Any]]:
    """Time, topic and message, photo by photo."""
    assert context.times is not None
    known = [time if time is not None and 0 <= time < LAST_SECOND * SECOND else None for time in context.times]
    degrees, recall = degrees_of(answers, context.utm), estimate_answer_recall(answers)
    for answer, photo, time, own in zip(answers, _photos(answers, context), spaced(known), known, strict=True):
        if photo is not None and answer.error is None:
            yield time, IMAGE, messages.image(time, *_compressed(photo))
        yield time, MATCHES_TOPIC, messages.matches(time, answer, degrees, context.map_name, context.calibration)
        place = sure_place(answer)
        if place is not None:
            best, on_globe = answer.hits[0].position, degrees.get(place.position)
            if not place.position.is_global:
                yield time, POSE, messages.pose(time, place, best)
            if on_globe is not None:
                yield time, FIX, messages.fix(time, place, on_globe, best)
        values = diagnostic_values(answer, context.milliseconds, recall, timed=own is not None)
        yield time, DIAGNOSTICS, messages.diagnostics(time, answer, context.map_name, values)


def _photos(answers: Sequence[Answer], context: ExportContext) -> Iterable[Photo | None]:
    """Those to be copied; of answers alone the files that they name, which a photo given in memory has none of."""
    if not context.images:
        return itertools.repeat(None, len(answers))
    if context.photos is not None:
        return context.photos
    return (path if (path := Path(answer.query)).is_file() else None for answer in answers)


def _compressed(photo: Photo) -> tuple[str, bytes]:
    """Format and content: the file itself if it is JPEG or PNG, else the picture as JPEG."""
    content = read_photo_file(photo)[1]
    for kind, start in _STARTS.items():
        if content.startswith(start):
            return kind, content
    written = io.BytesIO()
    try:
        as_rgb(content).save(written, "JPEG", quality=JPEG_QUALITY)
    except BadImage as error:
        raise BadImage(f"{error} (it is to be copied into a recording; --no-images leaves photos out)") from None
    return "jpeg", written.getvalue()
