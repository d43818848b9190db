"""Another process on the same DDS domain: a camera that publishes one photo until it hears an answer, and says which.

`python -m tests.ros.dds_peer DOMAIN PHOTO` knows neither the node nor the stub, only names of topics and types.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from cyclonedds.core import Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from tests.ros.dds_types import CompressedImage, DiagnosticArray, Header, Matches, NavSatFix, Time
from tests.waiting import PATIENCE


def main(domain: int, photo: Path) -> None:
    participant = DomainParticipant(domain)
    first = Policy.DataRepresentation(use_cdrv0_representation=True)
    heard = Qos(Policy.Reliability.Reliable(duration(seconds=1)), Policy.History.KeepLast(10), first)
    camera = Qos(Policy.Reliability.BestEffort, Policy.History.KeepLast(1), first)  # as cameras publish
    topic = Topic(participant, "rt/camera/image/compressed", CompressedImage)
    writer = DataWriter(participant, topic, qos=camera)
    kinds = {"rt/tfa/matches": Matches, "rt/tfa/fix": NavSatFix, "rt/diagnostics": DiagnosticArray}
    readers = {name: DataReader(participant, Topic(participant, name, kind), qos=heard) for name, kind in kinds.items()}
    answers: dict[str, list] = {name: [] for name in kinds}
    content, sent, deadline = list(photo.read_bytes()), 0, time.monotonic() + PATIENCE
    while not all(answers.values()) and time.monotonic() < deadline:
        writer.write(CompressedImage(Header(Time(1700000000, sent), "camera"), "png", content))
        sent += 1
        time.sleep(0.1)
        for name, reader in readers.items():
            answers[name] += [sample for sample in reader.take(N=100) if sample.sample_info.valid_data]
    told = {
        "sent": sent,
        "types": {name: kind.__idl_typename__ for name, kind in kinds.items()},
        "matches": [[one.header.stamp.sec, one.header.frame_id, one.map_name, one.matches[0].image, one.matches[0].sure]
                    for one in answers["rt/tfa/matches"]],
        "fixes": [[one.latitude, one.longitude, one.position_covariance[0]] for one in answers["rt/tfa/fix"]],
        "levels": [[status.level for status in one.status] for one in answers["rt/diagnostics"]],
    }  # fmt: skip
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
