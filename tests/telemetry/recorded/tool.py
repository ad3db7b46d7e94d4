"""A tool of macOS that was recorded: linked under the tool's name, it answers what a busy Mac answered."""

import sys
import time
from pathlib import Path

IOREG = """<?xml version="1.0" encoding="UTF-8"?>
<plist version="1.0">
<array>
  <dict>
    <key>model</key><data>QXBwbGUgTTIgTWF4AA==</data>
    <key>gpu-core-count</key><integer>30</integer>
    <key>PerformanceStatistics</key>
    <dict>
      <key>In use system memory (driver)</key><integer>0</integer>
      <key>Alloc system memory</key><integer>9000000000</integer>
      <key>Device Utilization %</key><integer>93</integer>
      <key>In use system memory</key><integer>6000000000</integer>
    </dict>
  </dict>
</array>
</plist>
"""
ANSWERS = {
    "ioreg -a -r -d 1 -w 0 -c IOAccelerator": IOREG,
    "notifyutil -g com.apple.system.thermalpressurelevel": "com.apple.system.thermalpressurelevel 2\n",
    "pmset -g batt": "Now drawing from 'Battery Power'\n"
    " -InternalBattery-0 (id=4522083)\t64%; discharging; 1:12 remaining present: true\n",
    "pmset -g": "System-wide power settings:\nCurrently in use:\n lowpowermode         1\n",
}


def main() -> None:
    asked = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    if asked != "macmon pipe -i 1000":
        sys.stdout.write(ANSWERS[asked])
        return
    while True:
        print('{"gpu_active_ratio": 0.5, "gpu_power": 31.5, "sys_power": 0.0}', flush=True)
        time.sleep(1)


if __name__ == "__main__":
    main()
