"""Package definition for `colcon build` (ament_python)."""

from setuptools import setup

setup(
    name="tfa_ros",
    version="0.1.0",
    packages=["tfa_ros"],
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/tfa_ros"]),
        ("share/tfa_ros", ["package.xml", "README.md"]),
        ("share/tfa_ros/launch", ["launch/tfa.launch.py"]),
        ("share/tfa_ros/config", ["config/tfa.yaml"]),
    ],
    install_requires=["setuptools"],
    python_requires=">=3.10",
    zip_safe=True,
    maintainer="The TFA authors",
    maintainer_email="tfa@example.org",
    description="Queries a place-recognition service (tfa serve) with camera images.",
    license="Apache-2.0",
    entry_points={"console_scripts": ["node = tfa_ros.node:main"]},
)
