"""Extract photos with times and positions from ROS 1 bags, ROS 2 bags (db3 or MCAP) and videos.

The output is a folder with one photo per keyframe and their positions. One frame is in memory at a time.
"""
