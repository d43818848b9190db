"""ROS 2 node that queries `tfa serve` with camera images. Needs Python 3.10 and ROS 2, but neither numpy nor tfa.

Only `node` imports rclpy, and only `node` and `assemble` import message types.
"""
