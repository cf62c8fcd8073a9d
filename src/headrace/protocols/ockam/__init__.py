"""Ockam streams: store now, pull later, for clients that are often offline.

`bare` and `cbor` are the two encodings, `routing` the routed messages and their two framings, `codec` the stream
requests and replies inside them. `session` decides, `server` does, `client` is the other side.
"""
