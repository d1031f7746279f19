"""A stand-in for curl on a machine without it: as much of it as the pages use (-s, -i, -X, -H, -d). Not a test."""

import argparse
import sys
import urllib.error
import urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("-s", action="store_true")
parser.add_argument("-i", action="store_true")
parser.add_argument("-X", dest="method")
parser.add_argument("-H", dest="headers", action="append", default=[])
parser.add_argument("-d", dest="body")
parser.add_argument("url")
given = parser.parse_args()

headers = dict(header.split(": ", 1) for header in given.headers)
body = None if given.body is None else given.body.encode()
request = urllib.request.Request(given.url, body, headers, method=given.method)
try:
    response = urllib.request.urlopen(request, timeout=20)
except urllib.error.HTTPError as refused:
    response = refused
if given.i:
    sys.stdout.write(f"HTTP/1.1 {response.status} \r\n{response.headers}")
sys.stdout.write(response.read().decode("utf-8"))
