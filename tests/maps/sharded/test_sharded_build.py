"""One map, whoever computes the shards and in whichever order; equal to the ordinary build and to the formulas."""

from tests.maps.sharded.builders import Published, build, counted


def test_serial(fleet, url, encoded):
    report = build(fleet, url)
    print(report)
    got = Published(url)
    assert got.names == [f"{n:03d}.png" for n in range(75)]
    assert got.ids.tolist() == list(range(75))
    assert counted(encoded) == 75
