"""A camera that a service follows, used like a tracker of a map on this disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tfa.client.forms import parse_answer
from tfa.errors import BadImage
from tfa.photos.images import Photo, name_photo, read_photo_file

if TYPE_CHECKING:
    from tfa.client.client import Client
    from tfa.types import Answer


class FollowedCamera:
    """`Client.follow` makes it. Its state is the service's: another client that names the camera continues it."""

    def __init__(self, client: Client, camera: str, how: dict[str, Any]) -> None:
        self.client, self.camera, self._how = client, camera, how

    def step(self, photo: Photo) -> Answer:
        """The answer to the next photo, adapted by those before it. One that cannot be read gets one that says so."""
        try:
            file = read_photo_file(photo)
        except BadImage as error:
            return parse_answer(name_photo(photo), {"error": str(error)})
        fields = {**self._how, "camera": self.camera}
        (reply,) = self.client._post("/v1/query/batch", "images", [file], fields)["answers"]
        return parse_answer(name_photo(photo), reply)

    @property
    def state(self) -> dict[str, Any]:
        """What the service knows of it: photos seen and counted, what they taught."""
        return dict(self.client._call("GET", f"/v1/cameras/{quote(self.camera, safe='')}"))

    def reset(self) -> None:
        """Forget every photo."""
        self.client.reset_camera(self.camera)
