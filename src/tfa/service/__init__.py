"""The HTTP service and its page: query, edit and calibrate maps over the network. No numeric code lives here.

Only the command line imports this package.
"""
