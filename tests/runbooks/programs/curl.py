"""A stand-in for curl on a machine without it: as much of it as the pages use. Not a test."""

import argparse
import sys
import urllib.error
import urllib.request

UNREACHABLE = 7

parser = argparse.ArgumentParser()
parser.add_argument("-s", action="store_true")
parser.add_argument("-S", action="store_true")
parser.add_argument("-i", action="store_true")
parser.add_argument("-o", dest="output", choices=["/dev/null"])
parser.add_argument("-w", dest="written", choices=["%{http_code}\\n"])
parser.add_argument("-m", dest="within_s", type=float, default=20)
parser.add_argument("-X", dest="method")
parser.add_argument("-H", dest="headers", action="append", default=[])
parser.add_argument("-d", dest="body")
parser.add_argument("url")
given = parser.parse_args()

headers = dict(header.split(": ", 1) for header in given.headers)
body = None if given.body is None else given.body.encode()
request = urllib.request.Request(given.url, body, headers, method=given.method)
try:
    response = urllib.request.urlopen(request, timeout=given.within_s)
except urllib.error.HTTPError as refused:
    response = refused
except OSError as error:
    if given.S or not given.s:
        sys.stderr.write(f"curl: ({UNREACHABLE}) {error}\n")
    sys.exit(UNREACHABLE)
if given.i:
    sys.stdout.write(f"HTTP/1.1 {response.status} \r\n{response.headers}")
content = response.read().decode("utf-8")
if given.output is None:
    sys.stdout.write(content)
if given.written is not None:
    sys.stdout.write(f"{response.status}\n")
