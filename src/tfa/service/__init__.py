"""The HTTP service and its page: maps queried, edited and calibrated over the network. It holds no arithmetic.

In: requests. Out: answers as JSON. May see: the maps it serves. It needs the extra `tfa-vpr[service]`; nothing
outside this package imports it but the command line.
"""
