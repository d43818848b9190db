"""Maps: a head and its photos as something that is saved, edited and asked."""

from tfa.maps.placemap import PlaceMap
from tfa.maps.records import Answer, CalibrationReport, EditReport, Hit, ImageRecord
from tfa.maps.verifying import Verified, verify

__all__ = ["Answer", "CalibrationReport", "EditReport", "Hit", "ImageRecord", "PlaceMap", "Verified", "verify"]
