"""A worker of `carma lab dataset measure` that measures nothing: it does what the column `act` says."""

import json
import os
import sys
import time

print(json.dumps({"ready": True, "total_mib": 100_000}), flush=True)
for line in sys.stdin:
    row = json.loads(line)
    act = row.get("act", "")
    # "die once": the second try goes well.
    mark = os.path.join(os.environ["FAKE_MARKS"], row["id"])
    first = not os.path.exists(mark)
    open(mark, "a").write("x")
    if act == "die" or (act == "die once" and first):
        print("a fake worker dies, as it was told", file=sys.stderr)
        os._exit(3)
    if act == "nonsense":
        print("this is not JSON", flush=True)
        time.sleep(60)
    answer = {"id": row["id"], "status": "SUCCESSFUL", "reserved_mib": 2, "allocated_mib": 1.5, "poisoned": False}
    if act == "full once" and first:
        answer["status"] = "FULL"
    if act == "poisoned":
        answer.update(status="FAILED", reason="a fault", poisoned=True)
    if act == "slow":
        time.sleep(0.3)
    print(json.dumps(answer), flush=True)
    if answer["poisoned"]:
        break
