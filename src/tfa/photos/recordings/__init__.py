"""Bags and videos → photos with times and positions.

In: a ROS 1 bag, a ROS 2 bag (db3 or MCAP), or a video. Out: a folder of photos, one for each keyframe, and where they
were taken. One frame is in memory at a time. May see: the files it is given.
"""
