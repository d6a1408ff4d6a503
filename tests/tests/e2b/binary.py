"""Runs a script of the unmodified Python SDK with its messages to envd in protobuf: its own library's binary codec in the
place of JSON's."""
import os
import runpy
import sys

from connectrpc.codec import proto_binary_codec

import e2b.envd.client_async
import e2b.envd.client_sync

for module in (e2b.envd.client_async, e2b.envd.client_sync):
    assert module.ENVD_JSON_CODEC.name() == "json"
    module.ENVD_JSON_CODEC = proto_binary_codec()

runpy.run_path(os.path.join(os.path.dirname(__file__), sys.argv[1]), run_name="__main__")
