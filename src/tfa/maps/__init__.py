"""Maps: a head and its photos as something that is saved, edited and asked."""

from tfa.maps.place_map import PlaceMap
from tfa.maps.records import Answer, CalibrationReport, EditReport, Hit, ImageRecord
from tfa.maps.verification import Verified, verify

__all__ = ["Answer", "CalibrationReport", "EditReport", "Hit", "ImageRecord", "PlaceMap", "Verified", "verify"]
