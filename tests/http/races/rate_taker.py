"""Takes permits as fast as it can for the given seconds, and prints the time of each."""

from __future__ import annotations

import sys
import time

import django

django.setup()

from delayed_queue.http.rates import SharedRate  # noqa: E402


def main() -> None:
    rate = SharedRate(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
    print("ready", flush=True)  # noqa: T201
    sys.stdin.readline()
    ends_at = time.time() + float(sys.argv[4])
    while (now := time.time()) < ends_at:
        wait = rate.take().total_seconds()
        if wait:
            time.sleep(min(wait, ends_at - now))
        else:
            print(time.time())  # noqa: T201


if __name__ == "__main__":
    main()
