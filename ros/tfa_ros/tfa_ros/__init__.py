"""Camera images of ROS 2 → answers of `tfa serve` → messages. Needs Python 3.10 and ROS 2, neither numpy nor tfa.

Only `node` imports rclpy, only it and `assemble` know types of messages; everything else is plain Python.
"""
