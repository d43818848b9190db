"""Launch the node: `ros2 launch tfa_ros tfa.launch.py params:=my.yaml namespace:=front`."""

from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare

from launch import LaunchDescription


def generate_launch_description():
    sample = PathJoinSubstitution([FindPackageShare("tfa_ros"), "config", "tfa.yaml"])
    return LaunchDescription(
        [
            DeclareLaunchArgument("params", default_value=sample, description="parameter file"),
            DeclareLaunchArgument("namespace", default_value="", description="namespace of the node; one per camera"),
            Node(
                package="tfa_ros",
                executable="node",
                name="tfa",
                namespace=LaunchConfiguration("namespace"),
                parameters=[LaunchConfiguration("params")],
                output="screen",
            ),
        ]
    )
