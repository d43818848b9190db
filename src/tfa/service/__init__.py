"""The HTTP service: maps asked, edited and calibrated over the network. It holds no arithmetic.

It needs the extra `tfa-vpr[service]`; nothing outside this package imports it but the command line, when it serves.
"""
